//! A loaded model, as a class of Python.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use sws::{
    Cancel, Conversation, Gauge, GenerationOptions, LoadedModel, Message, Model, Position, Prompt,
    Request, TextCodec,
};

use crate::options::{self, ModelOptions, TextOrTokens};
use crate::recorder::Recorder;
use crate::score::{PyRank, Ranks, score};
use crate::text::{PyText, TextEnd, TextFacts, follow};
use crate::texts::PyTexts;
use crate::worker::{ModelThread, lock};
use crate::{arrays, raised};

/// A loaded model.
#[pyclass(frozen, name = "Model", module = "sws")]
pub(crate) struct PyModel {
    worker: Arc<ModelThread>,
    facts: ModelFacts,
}

/// Facts about a loaded model, known without its thread.
struct ModelFacts {
    model: Model,
    /// Texts are encoded one at a time, as the budget has memory for one.
    text: Mutex<TextCodec>,
    gauge: Option<Gauge>,
    limit: usize,
    /// True if logits of all positions are in the budget.
    all_logits: bool,
    warnings: Vec<String>,
    stop_tokens: Vec<u32>,
    vocab: usize,
}

/// Names of options that a text has besides those of its sampling.
const ROUTES: &str = "routes";
const LOGITS: &str = "logits";

impl PyModel {
    fn tokens(&self, text: TextOrTokens, special: bool) -> PyResult<Vec<u32>> {
        let ModelFacts { model, text: codec, .. } = &self.facts;
        match text {
            TextOrTokens::Tokens(tokens) => Ok(tokens),
            TextOrTokens::Text(text) => lock(codec).encode(model, &text, special).map_err(raised),
        }
    }

    /// Options of a text with a seed of their own, and the seed that the text depends on.
    fn seeded(&self, mut options: GenerationOptions) -> PyResult<(GenerationOptions, Option<u64>)> {
        let generation = self.facts.model.generation(&options).map_err(raised)?;
        options.seed = Some(generation.sampling.seed);
        Ok((options, generation.sampling.drawing_seed()))
    }

    fn text_facts(&self, seed: Option<u64>) -> TextFacts {
        let ModelFacts { gauge, vocab, .. } = &self.facts;
        TextFacts { gauge: gauge.clone(), seed, vocab: *vocab }
    }

    /// Takes the options that say what is recorded of a text.
    fn recorder(&self, options: Option<&Bound<'_, PyDict>>, cancel: &Cancel) -> PyResult<Recorder> {
        let mut recorder = Recorder::new(cancel);
        let taken = |name: &str| -> PyResult<bool> {
            let Some(options) = options else { return Ok(false) };
            let Some(value) = options.get_item(name)? else { return Ok(false) };
            options.del_item(name)?;
            value.extract()
        };
        let (routes, logits) = (taken(ROUTES)?, taken(LOGITS)?);
        if routes {
            recorder = recorder.with_routes(self.facts.model.spec());
        }
        if logits {
            recorder = recorder.with_logits();
        }
        Ok(recorder)
    }

    /// Refuses logits of all positions, unless the budget has memory for them.
    fn check_logits(&self) -> PyResult<()> {
        match self.facts.all_logits {
            true => Ok(()),
            false => Err(raised(
                "the budget has no memory for the logits of all positions; open the model with logits=True",
            )),
        }
    }
}

#[pymethods]
impl PyModel {
    #[new]
    #[pyo3(signature = (model, **options))]
    fn new(
        py: Python<'_>,
        model: PathBuf,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<PyModel> {
        let options = ModelOptions::read(options)?;
        py.detach(|| {
            let cancel = Cancel::new();
            let all_logits = options.needs.all_logits;
            let loading = cancel.clone();
            let open = move || {
                let model = Model::open(model)?;
                options.loader(&model)?.cancelled_by(loading).load()
            };
            let facts = move |loaded: &mut LoadedModel| {
                let model = loaded.model().clone();
                let defaults = model.generation(&GenerationOptions::default())?;
                Ok(ModelFacts {
                    text: Mutex::new(loaded.text().clone()),
                    gauge: loaded.gauge(),
                    limit: loaded.limit(),
                    all_logits,
                    warnings: loaded.warnings().iter().map(ToString::to_string).collect(),
                    stop_tokens: defaults.stop_tokens,
                    vocab: loaded.causal_lm().vocab(),
                    model,
                })
            };
            let (worker, facts) = ModelThread::start(&cancel, open, facts)?;
            Ok(PyModel { worker: Arc::new(worker), facts })
        })
    }

    /// Continues a text.
    #[pyo3(signature = (prompt, **options))]
    fn generate(
        &self,
        py: Python<'_>,
        prompt: TextOrTokens,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<PyText> {
        let cancel = Cancel::new();
        let mut recorder = self.recorder(options, &cancel)?;
        let options = options::generation(options)?;
        py.detach(|| {
            let (options, seed) = self.seeded(options)?;
            let prompt = Prompt::Tokens(self.tokens(prompt, true)?);
            PyText::begin(&self.worker, self.text_facts(seed), cancel, move |model, asked| {
                let generate = model.generate(Request { prompt, options })?;
                let made = follow(generate, &mut recorder, asked);
                Ok(TextEnd::of(model, made, recorder))
            })
        })
    }

    /// Answers the last of the messages of a conversation.
    #[pyo3(signature = (messages, *, think = None, **options))]
    fn chat(
        &self,
        py: Python<'_>,
        messages: &Bound<'_, PyAny>,
        think: Option<bool>,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<PyText> {
        let cancel = Cancel::new();
        let mut recorder = self.recorder(options, &cancel)?;
        let options = options::generation(options)?;
        let messages = options::messages(messages)?;
        py.detach(|| {
            let options = GenerationOptions { conversation: true, ..options };
            let (options, seed) = self.seeded(options)?;
            PyText::begin(&self.worker, self.text_facts(seed), cancel, move |model, asked| {
                let (mut conversation, question) = conversation(model, &options, messages, think)?;
                let generate = model.chat(&mut conversation, &question)?;
                let made = follow(generate, &mut recorder, asked);
                Ok(TextEnd::of(model, made, recorder))
            })
        })
    }

    /// The prompt with which the last of the messages would be answered.
    #[pyo3(signature = (messages, *, think = None))]
    fn chat_prompt(
        &self,
        py: Python<'_>,
        messages: &Bound<'_, PyAny>,
        think: Option<bool>,
    ) -> PyResult<String> {
        let messages = options::messages(messages)?;
        py.detach(|| {
            self.worker.call(&Cancel::new(), move |model| {
                let options = GenerationOptions::default();
                let (conversation, question) = conversation(model, &options, messages, think)?;
                Ok(model.chat_prompt(&conversation, &question)?.text().to_owned())
            })
        })
    }

    /// Continues several texts in shared passes.
    #[pyo3(signature = (prompts, **options))]
    fn generate_all(
        &self,
        py: Python<'_>,
        prompts: &Bound<'_, PyAny>,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<PyTexts> {
        let options = options::generation(options)?;
        let mut texts = Vec::new();
        for prompt in prompts.try_iter()? {
            texts.push(prompt?.extract::<TextOrTokens>()?);
        }
        py.detach(|| {
            let (options, _) = self.seeded(options)?;
            let request = |text| {
                let prompt = Prompt::Tokens(self.tokens(text, true)?);
                Ok(Request { prompt, options: options.clone() })
            };
            let requests: PyResult<Vec<Request>> = texts.into_iter().map(request).collect();
            PyTexts::begin(&self.worker, requests?)
        })
    }

    /// Logits and routes of all positions of a text.
    fn forward<'py>(
        &self,
        py: Python<'py>,
        text: TextOrTokens,
    ) -> PyResult<(Bound<'py, PyAny>, Option<Bound<'py, PyAny>>)> {
        let recorder = py.detach(|| {
            self.check_logits()?;
            let tokens = self.tokens(text, true)?;
            let cancel = Cancel::new();
            let recorder =
                Recorder::new(&cancel).with_routes(self.facts.model.spec()).with_logits();
            self.scored(&cancel, tokens, recorder)
        })?;
        let logits = arrays::logits(py, &recorder.logits.unwrap_or_default(), self.facts.vocab)?;
        let routes = recorder.routes.map(|routes| arrays::routes(py, &routes)).transpose()?;
        Ok((logits, routes))
    }

    /// Probabilities of the tokens of a text, from the second on.
    #[pyo3(signature = (text, *, top = 1))]
    fn score(&self, py: Python<'_>, text: TextOrTokens, top: usize) -> PyResult<Vec<PyRank>> {
        py.detach(|| {
            self.check_logits()?;
            let tokens = self.tokens(text, true)?;
            let cancel = Cancel::new();
            let mut recorder = Recorder::new(&cancel);
            recorder.ranks = Some(Ranks::new(tokens.clone(), self.facts.vocab, top));
            let recorder = self.scored(&cancel, tokens, recorder)?;
            let ranks = recorder.ranks.map_or(Vec::new(), |ranks| ranks.ranks);
            Ok(ranks.into_iter().map(PyRank::from).collect())
        })
    }

    /// The tokens of a text.
    #[pyo3(signature = (text, *, special = true))]
    fn encode(&self, py: Python<'_>, text: String, special: bool) -> PyResult<Vec<u32>> {
        py.detach(|| self.tokens(TextOrTokens::Text(text), special))
    }

    /// The text of tokens.
    fn decode(&self, py: Python<'_>, tokens: Vec<u32>) -> PyResult<String> {
        py.detach(|| {
            let codec = lock(&self.facts.text);
            codec.decode(&self.facts.model, &tokens, Position::Middle).map_err(raised)
        })
    }

    /// Ends texts in progress, and frees the model.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.worker.close())
    }

    fn __enter__(model: PyRef<'_, Self>) -> PyRef<'_, Self> {
        model
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyTuple>) -> PyResult<()> {
        self.close(py)
    }

    fn __repr__(&self) -> String {
        format!("Model({:?})", self.facts.model.name())
    }

    /// The name of the model.
    #[getter]
    fn name(&self) -> String {
        self.facts.model.name()
    }

    /// The identity of the checkpoint.
    #[getter]
    fn fingerprint(&self) -> String {
        self.facts.model.manifest().model.fingerprint.clone()
    }

    /// Maximum number of positions of a text.
    #[getter]
    fn context(&self) -> usize {
        self.facts.limit
    }

    /// Number of logits of a position.
    #[getter]
    fn vocab(&self) -> usize {
        self.facts.vocab
    }

    /// Tokens that end a text.
    #[getter]
    fn stop_tokens(&self) -> Vec<u32> {
        self.facts.stop_tokens.clone()
    }

    /// Warnings about loading, one sentence each.
    #[getter]
    fn warnings(&self) -> Vec<String> {
        self.facts.warnings.clone()
    }
}

impl PyModel {
    /// Computes tokens, and returns what was recorded of each.
    fn scored(
        &self,
        cancel: &Cancel,
        tokens: Vec<u32>,
        mut recorder: Recorder,
    ) -> PyResult<Recorder> {
        self.worker.call(cancel, move |model| {
            model.model().check(&tokens)?;
            score(model, &tokens, &mut recorder)?;
            Ok(recorder)
        })
    }
}

/// A conversation before its last question, and the question.
fn conversation(
    model: &LoadedModel,
    options: &GenerationOptions,
    mut messages: Vec<Message>,
    think: Option<bool>,
) -> sws::Result<(Conversation, String)> {
    let mut conversation = model.conversation(options)?;
    if let Some(think) = think {
        conversation.set_thinking(think);
    }
    let question = messages.pop().map_or(String::new(), |question| question.content);
    conversation.set_messages(messages);
    Ok((conversation, question))
}
