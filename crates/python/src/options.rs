//! Options that Python gives by name: those of the command, with underscores.

use std::fmt::Display;
use std::path::PathBuf;
use std::str::FromStr;

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use sws::{
    DraftChoice, GenerationOptions, KvPrecision, Loader, Message, Model, Needs, Options, RamBudget,
    Threads,
};

use crate::raised;

/// A text, as text or as tokens.
#[derive(FromPyObject)]
pub(crate) enum TextOrTokens {
    #[pyo3(transparent, annotation = "str")]
    Text(String),
    #[pyo3(transparent, annotation = "list[int]")]
    Tokens(Vec<u32>),
}

/// An amount of memory, with or without its unit.
#[derive(FromPyObject)]
enum Amount {
    #[pyo3(transparent, annotation = "int")]
    Bytes(u64),
    #[pyo3(transparent, annotation = "str")]
    Words(String),
}

/// A file, or False for none.
#[derive(FromPyObject)]
enum DraftOption {
    #[pyo3(transparent, annotation = "bool")]
    IsOn(bool),
    #[pyo3(transparent, annotation = "str")]
    File(PathBuf),
}

/// Options for loading a model.
#[derive(Default)]
pub(crate) struct ModelOptions {
    pub(crate) options: Options,
    pub(crate) needs: Needs,
    threads: Option<usize>,
}

impl ModelOptions {
    pub(crate) fn read(given: Option<&Bound<'_, PyDict>>) -> PyResult<ModelOptions> {
        let mut read = ModelOptions::default();
        let ModelOptions { options, needs, threads } = &mut read;
        for (name, value) in given.into_iter().flatten() {
            let name: String = name.extract()?;
            match name.as_str() {
                "ram" => {
                    options.ram = match value.extract()? {
                        Amount::Bytes(bytes) => RamBudget::Bytes(bytes),
                        Amount::Words(words) => parsed(&words)?,
                    }
                }
                "resident" => options.resident = value.extract()?,
                "context" => options.context = value.extract()?,
                "threads" => *threads = value.extract()?,
                "parallel" => needs.texts = value.extract::<usize>()?.max(1),
                "logits" => needs.all_logits = value.extract()?,
                "reserve" => needs.heap = bytes(&name, value.extract()?)?,
                "kv" => options.kv = kv(&value.extract::<String>()?)?,
                "activations" => options.activations = parsed(&value.extract::<String>()?)?,
                "reader" => options.reader = parsed(&value.extract::<String>()?)?,
                "max_disk_rate" => {
                    let rate: Option<Amount> = value.extract()?;
                    options.max_disk_rate = rate.map(|rate| bytes(&name, rate)).transpose()?;
                }
                "proposals" => options.speculative = value.extract()?,
                "policy" => options.streaming.policy = parsed(&value.extract::<String>()?)?,
                "speculation" => options.streaming.speculation = value.extract()?,
                "draft" => {
                    options.streaming.draft = match value.extract()? {
                        DraftOption::IsOn(true) => DraftChoice::Auto,
                        DraftOption::IsOn(false) => DraftChoice::Off,
                        DraftOption::File(file) => DraftChoice::File(file),
                    }
                }
                "warm_start" => options.streaming.warm_start = value.extract()?,
                _ => return Err(unknown(&name)),
            }
        }
        Ok(read)
    }

    /// A loader of the model with these options.
    pub(crate) fn loader(self, model: &Model) -> sws::Result<Loader<'_>> {
        let loader = model.with(self.options).needs(self.needs);
        Ok(match self.threads {
            Some(threads) => loader.threads(&Threads::start(threads)?),
            None => loader,
        })
    }
}

/// Options for a text of its own.
#[derive(Default)]
pub(crate) struct PyTextOptions {
    pub(crate) generation: GenerationOptions,
    /// True to record routes.
    pub(crate) routes: bool,
    /// True to record logits.
    pub(crate) logits: bool,
}

impl PyTextOptions {
    pub(crate) fn read(given: Option<&Bound<'_, PyDict>>) -> PyResult<PyTextOptions> {
        let mut read = PyTextOptions::default();
        for (name, value) in given.into_iter().flatten() {
            let name: String = name.extract()?;
            match name.as_str() {
                "routes" => read.routes = value.extract()?,
                "logits" => read.logits = value.extract()?,
                _ => read_sampling(&mut read.generation, &name, &value)?,
            }
        }
        Ok(read)
    }
}

/// Options for each of several texts.
pub(crate) fn generation(given: Option<&Bound<'_, PyDict>>) -> PyResult<GenerationOptions> {
    let mut options = GenerationOptions::default();
    for (name, value) in given.into_iter().flatten() {
        read_sampling(&mut options, &name.extract::<String>()?, &value)?;
    }
    Ok(options)
}

fn read_sampling(
    options: &mut GenerationOptions,
    name: &str,
    value: &Bound<'_, PyAny>,
) -> PyResult<()> {
    match name {
        "temperature" => options.temperature = value.extract()?,
        "top_k" => options.top_k = value.extract()?,
        "top_p" => options.top_p = value.extract()?,
        "min_p" => options.min_p = value.extract()?,
        "repetition_penalty" => options.repetition_penalty = value.extract()?,
        "presence_penalty" => options.presence_penalty = value.extract()?,
        "frequency_penalty" => options.frequency_penalty = value.extract()?,
        "seed" => options.seed = value.extract()?,
        "max_new_tokens" => options.max_new_tokens = value.extract()?,
        "stop" => {
            options.stop = match value.extract::<String>() {
                Ok(one) => vec![one],
                Err(_) => value.extract()?,
            }
        }
        "ignore_eos" => options.ignore_eos = value.extract()?,
        _ => return Err(unknown(name)),
    }
    Ok(())
}

/// The messages of a conversation; the last asks for an answer.
pub(crate) fn messages(given: &Bound<'_, PyAny>) -> PyResult<Vec<Message>> {
    let mut messages = Vec::new();
    for message in given.try_iter()? {
        let message = message?;
        let message = message.cast::<PyDict>()?;
        let field = |name: &str| {
            let value = message.get_item(name)?;
            value.map(|value| value.extract::<Option<String>>()).transpose().map(Option::flatten)
        };
        let needed = |name: &str| {
            field(name)?.ok_or_else(|| {
                PyValueError::new_err(format!(
                    "a message has a `role` and a `content`, and one lacks `{name}`"
                ))
            })
        };
        let reasoning_content = field("reasoning_content")?;
        messages.push(Message {
            reasoning_content,
            ..Message::new(needed("role")?, needed("content")?)
        });
    }
    match messages.last() {
        Some(last) if last.role == "user" => Ok(messages),
        _ => Err(PyValueError::new_err(
            "the last of the messages is one of the user, which is answered",
        )),
    }
}

fn unknown(name: &str) -> PyErr {
    PyTypeError::new_err(format!("there is no option `{name}`; help(sws) lists them"))
}

fn parsed<T: FromStr<Err: Display>>(words: &str) -> PyResult<T> {
    words.parse().map_err(raised)
}

/// A number of bytes that does not depend on the machine.
fn bytes(name: &str, amount: Amount) -> PyResult<u64> {
    let words = match amount {
        Amount::Bytes(bytes) => return Ok(bytes),
        Amount::Words(words) => words,
    };
    match parsed(&words)? {
        RamBudget::Bytes(bytes) => Ok(bytes),
        _ => Err(raised(format!("`{name}` is a number of bytes, such as 500MB, not `{words}`"))),
    }
}

fn kv(word: &str) -> PyResult<KvPrecision> {
    let found = KvPrecision::ALL.into_iter().find(|kv| kv.name() == word);
    found.ok_or_else(|| {
        raised(format!("keys and values are kept in f32, bf16 or q8, not in {word}"))
    })
}
