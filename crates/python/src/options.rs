//! Options that Python gives by name: those of the command, with underscores.

use std::fmt::Display;
use std::path::PathBuf;
use std::str::FromStr;

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes, PyDict, PyMapping};
use sws::{
    DraftChoice, GenerationOptions, KvPrecision, Loader, Message, Model, Needs, Options, RamBudget,
    Threads,
};

use crate::raised;

/// A text, as text or as tokens.
pub(crate) enum TextOrTokens {
    Text(String),
    Tokens(Vec<u32>),
}

impl<'a, 'py> FromPyObject<'a, 'py> for TextOrTokens {
    type Error = PyErr;

    fn extract(given: Borrowed<'a, 'py, PyAny>) -> PyResult<TextOrTokens> {
        if let Ok(text) = given.extract() {
            return Ok(TextOrTokens::Text(text));
        }
        // Bytes are numbers, too.
        let is_bytes = given.is_instance_of::<PyBytes>() || given.is_instance_of::<PyByteArray>();
        let tokens: PyResult<Vec<u32>> = match is_bytes {
            true => Err(PyTypeError::new_err("bytes are neither; decode them")),
            false => given.extract(),
        };
        match tokens {
            Ok(tokens) => Ok(TextOrTokens::Tokens(tokens)),
            Err(error) => {
                let error = error.value(given.py());
                Err(PyTypeError::new_err(format!("a text is a str or a list of tokens: {error}")))
            }
        }
    }
}

/// One string, or several.
#[derive(FromPyObject)]
enum OneOrSeveral {
    #[pyo3(transparent, annotation = "str")]
    One(String),
    #[pyo3(transparent, annotation = "list[str]")]
    Several(Vec<String>),
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
    #[pyo3(transparent, annotation = "path")]
    File(PathBuf),
}

/// An option by its name.
struct Given<'py> {
    name: String,
    value: Bound<'py, PyAny>,
}

/// The options that are given.
fn all<'py>(options: Option<&Bound<'py, PyDict>>) -> PyResult<Vec<Given<'py>>> {
    let mut all = Vec::new();
    for (name, value) in options.into_iter().flatten() {
        all.push(Given { name: name.extract()?, value });
    }
    Ok(all)
}

impl<'py> Given<'py> {
    /// The value. An error names the option.
    fn read<'a, T: FromPyObject<'a, 'py>>(&'a self) -> PyResult<T> {
        let Given { name, value } = self;
        let error: PyErr = match value.extract::<T>() {
            Ok(read) => return Ok(read),
            Err(error) => error.into(),
        };
        let error = error.value(value.py()).to_string();
        let error = error.lines().next().unwrap_or_default();
        let shown = match value.repr() {
            Ok(shown) => shown.to_string(),
            Err(_) => String::new(),
        };
        let shown: String = shown.chars().take(40).collect();
        Err(raised(format!(
            "`{name}` cannot be {shown}: {error}; sws/__init__.pyi has the types of options"
        )))
    }

    /// A number from 1 on; `None` for the default.
    fn count(&self) -> PyResult<Option<usize>> {
        let count: Option<usize> = self.read()?;
        match count {
            Some(0) => Err(raised(format!(
                "`{}` cannot be 0; give 1 or more, or leave it out for the default",
                self.name
            ))),
            _ => Ok(count),
        }
    }

    /// A value by its name.
    fn word<T: FromStr<Err: Display>>(&self) -> PyResult<T> {
        parsed(&self.read::<String>()?)
    }
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
        for given in all(given)? {
            match given.name.as_str() {
                "ram" => {
                    options.ram = match given.read()? {
                        Amount::Bytes(bytes) => RamBudget::Bytes(bytes),
                        Amount::Words(words) => parsed(&words)?,
                    }
                }
                "resident" => options.resident = given.read()?,
                "context" => options.context = given.count()?,
                "threads" => *threads = given.count()?,
                "parallel" => needs.texts = given.count()?.unwrap_or(1),
                "logits" => needs.all_logits = given.read()?,
                "reserve" => needs.heap = bytes(&given.name, given.read()?)?,
                "kv" => options.kv = kv(&given.read::<String>()?)?,
                "activations" => options.activations = given.word()?,
                "reader" => options.reader = given.word()?,
                "max_disk_rate" => {
                    let rate: Option<Amount> = given.read()?;
                    options.max_disk_rate = match rate {
                        Some(rate) => Some(bytes(&given.name, rate)?),
                        None => None,
                    };
                }
                "proposals" => options.speculative = given.read()?,
                "policy" => options.streaming.policy = given.word()?,
                "speculation" => options.streaming.speculation = given.read()?,
                "draft" => {
                    options.streaming.draft = match given.read()? {
                        DraftOption::IsOn(true) => DraftChoice::Auto,
                        DraftOption::IsOn(false) => DraftChoice::Off,
                        DraftOption::File(file) => DraftChoice::File(file),
                    }
                }
                "warm_start" => options.streaming.warm_start = given.read()?,
                name => return Err(unknown(name)),
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
        for given in all(given)? {
            match given.name.as_str() {
                "routes" => read.routes = given.read()?,
                "logits" => read.logits = given.read()?,
                _ => read_sampling(&mut read.generation, &given)?,
            }
        }
        Ok(read)
    }
}

/// Options for each of several texts.
pub(crate) fn generation(given: Option<&Bound<'_, PyDict>>) -> PyResult<GenerationOptions> {
    let mut options = GenerationOptions::default();
    for given in all(given)? {
        read_sampling(&mut options, &given)?;
    }
    Ok(options)
}

fn read_sampling(options: &mut GenerationOptions, given: &Given<'_>) -> PyResult<()> {
    match given.name.as_str() {
        "temperature" => options.temperature = given.read()?,
        "top_k" => options.top_k = given.read()?,
        "top_p" => options.top_p = given.read()?,
        "min_p" => options.min_p = given.read()?,
        "repetition_penalty" => options.repetition_penalty = given.read()?,
        "presence_penalty" => options.presence_penalty = given.read()?,
        "frequency_penalty" => options.frequency_penalty = given.read()?,
        "seed" => options.seed = given.read()?,
        "max_new_tokens" => options.max_new_tokens = given.read()?,
        "stop" => {
            options.stop = match given.read()? {
                None => Vec::new(),
                Some(OneOrSeveral::One(string)) => vec![string],
                Some(OneOrSeveral::Several(strings)) => strings,
            }
        }
        "ignore_eos" => options.ignore_eos = given.read()?,
        name => return Err(unknown(name)),
    }
    Ok(())
}

/// The messages of a conversation; the last asks for an answer.
pub(crate) fn messages(given: &Bound<'_, PyAny>) -> PyResult<Vec<Message>> {
    let mut messages = Vec::new();
    for message in given.try_iter()? {
        let message = message?;
        let message = message.cast::<PyMapping>()?;
        let reasoning_content = field(message, "reasoning_content")?;
        messages.push(Message {
            reasoning_content,
            ..Message::new(needed(message, "role")?, needed(message, "content")?)
        });
    }
    match messages.last() {
        Some(last) if last.role == "user" => Ok(messages),
        _ => Err(PyValueError::new_err(
            "the last of the messages is one of the user, which is answered",
        )),
    }
}

fn field(message: &Bound<'_, PyMapping>, name: &str) -> PyResult<Option<String>> {
    if message.contains(name)? { message.get_item(name)?.extract() } else { Ok(None) }
}

fn needed(message: &Bound<'_, PyMapping>, name: &str) -> PyResult<String> {
    let Some(value) = field(message, name)? else {
        return Err(PyValueError::new_err(format!(
            "a message has a `role` and a `content`, and one lacks `{name}`"
        )));
    };
    Ok(value)
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
    for kv in KvPrecision::ALL {
        if kv.name() == word {
            return Ok(kv);
        }
    }
    Err(raised(format!("keys and values are kept in f32, bf16 or q8, not in {word}")))
}
