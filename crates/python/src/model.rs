//! A loaded model, as a class of Python.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use sws::{
    Cancel, Conversation, Defaults, Gauge, Generation, GenerationOptions, LoadedModel, Message,
    Model, NEW_TOKENS, Position, Prompt, Request, TextCodec,
};

use crate::arrays::LogitArray;
use crate::options::{self, ModelOptions, PyTextOptions, TextOrTokens};
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
    /// Bytes that the budget has for this program; `None` without a budget.
    reserve: Option<u64>,
    warnings: Vec<String>,
    stop_tokens: Vec<u32>,
    vocab: usize,
    /// False if the chat template has no switch for reasoning.
    has_switch: bool,
}

type OptionalArray<'py> = Option<Bound<'py, PyAny>>;

impl PyModel {
    fn tokens(&self, text: TextOrTokens, special: bool) -> PyResult<Vec<u32>> {
        let ModelFacts { model, text: codec, .. } = &self.facts;
        match text {
            TextOrTokens::Tokens(tokens) => Ok(tokens),
            TextOrTokens::Text(text) => lock(codec).encode(model, &text, special).map_err(raised),
        }
    }

    /// Gives options a seed of their own. Returns them as they are resolved.
    fn seeded(&self, options: &mut GenerationOptions) -> PyResult<Generation> {
        seeded(&self.facts.model.defaults().map_err(raised)?, options)
    }

    fn text_facts(&self, generation: &Generation) -> TextFacts {
        let seed = generation.sampling.drawing_seed();
        TextFacts { gauge: self.facts.gauge.clone(), seed }
    }

    /// An observer that records what is asked for of a text with so many tokens at most.
    fn recorder(&self, options: &PyTextOptions, most: usize) -> PyResult<Recorder> {
        let mut recorder = Recorder::default();
        if options.routes {
            recorder = recorder.with_routes(self.facts.model.spec());
        }
        if options.logits {
            recorder.logits = Some(self.logit_array(most.min(self.facts.limit))?);
        }
        Ok(recorder)
    }

    /// An array for the logits of so many tokens, unless they would exceed what the budget has for this program.
    fn logit_array(&self, rows: usize) -> PyResult<LogitArray> {
        let ModelFacts { reserve, vocab, .. } = self.facts;
        let bytes = 4 * vocab as u64 * rows as u64;
        match reserve {
            Some(reserve) if bytes > reserve => Err(raised(format!(
                "logits of {rows} tokens take {bytes} bytes, and the budget reserves {reserve} for this program; ask for fewer tokens, or open the model with reserve={bytes}"
            ))),
            _ => Python::attach(|py| LogitArray::new(py, rows, vocab)),
        }
    }

    /// Refuses to switch reasoning on or off with a chat template that cannot.
    fn check_think(&self, think: Option<bool>) -> PyResult<()> {
        let ModelFacts { model, has_switch, .. } = &self.facts;
        match think {
            Some(_) if !has_switch => Err(raised(format!(
                "the chat template of {} has no switch for reasoning, so it stays as it is; leave out `think`",
                model.name()
            ))),
            _ => Ok(()),
        }
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
        if options.needs.all_logits || options.needs.heap > 0 {
            // Counted in the budget, if there may be logits. Other calls do without it.
            let _ = arrays::numpy(py);
        }
        py.detach(|| {
            let cancel = Cancel::new();
            let heap = options.needs.heap;
            let all_logits = options.needs.all_logits;
            let loading = cancel.clone();
            let open = move || {
                let model = Model::open(model)?;
                options.loader(&model)?.cancelled_by(loading).load()
            };
            let facts = move |loaded: &mut LoadedModel| {
                let model = loaded.model().clone();
                let defaults = model.generation(&GenerationOptions::default())?;
                let has_switch = match loaded.text().template() {
                    Some(template) => template.thinking(false).is_some(),
                    None => true,
                };
                Ok(ModelFacts {
                    text: Mutex::new(loaded.text().clone()),
                    gauge: loaded.gauge(),
                    limit: loaded.limit(),
                    all_logits,
                    reserve: loaded.plan().is_some().then_some(heap),
                    warnings: loaded.warnings().iter().map(ToString::to_string).collect(),
                    stop_tokens: defaults.stop_tokens,
                    vocab: loaded.causal_lm().vocab(),
                    has_switch,
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
        let mut options = PyTextOptions::read(options)?;
        py.detach(|| {
            let generation = self.seeded(&mut options.generation)?;
            let most = generation.max_new_tokens.unwrap_or(NEW_TOKENS);
            let mut recorder = self.recorder(&options, most)?;
            let options = options.generation;
            let prompt = Prompt::Tokens(self.tokens(prompt, true)?);
            let cancel = recorder.cancel.clone();
            PyText::begin(
                &self.worker,
                self.text_facts(&generation),
                cancel,
                move |model, asked| {
                    let generate = model.generate(Request { prompt, options })?;
                    let made = follow(generate, &mut recorder, asked);
                    Ok(TextEnd::of(model, made, recorder))
                },
            )
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
        let mut options = PyTextOptions::read(options)?;
        let messages = options::messages(messages)?;
        self.check_think(think)?;
        py.detach(|| {
            options.generation.conversation = true;
            let generation = self.seeded(&mut options.generation)?;
            // Without a limit an answer can fill the context.
            let most = generation.max_new_tokens.unwrap_or(usize::MAX);
            let mut recorder = self.recorder(&options, most)?;
            let options = options.generation;
            let cancel = recorder.cancel.clone();
            PyText::begin(
                &self.worker,
                self.text_facts(&generation),
                cancel,
                move |model, asked| {
                    let (mut conversation, question) =
                        conversation(model, &options, messages, think)?;
                    let generate = model.chat(&mut conversation, &question)?;
                    let made = follow(generate, &mut recorder, asked);
                    Ok(TextEnd::of(model, made, recorder))
                },
            )
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
        self.check_think(think)?;
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
            let defaults = self.facts.model.defaults().map_err(raised)?;
            let mut requests = Vec::new();
            let mut seeds = Vec::new();
            for text in texts {
                let mut options = options.clone();
                seeds.push(seeded(&defaults, &mut options)?.sampling.drawing_seed());
                let prompt = Prompt::Tokens(self.tokens(text, true)?);
                requests.push(Request { prompt, options });
            }
            PyTexts::begin(&self.worker, requests, seeds)
        })
    }

    /// Logits and routes of all positions of a text.
    fn forward<'py>(
        &self,
        py: Python<'py>,
        text: TextOrTokens,
    ) -> PyResult<(OptionalArray<'py>, OptionalArray<'py>)> {
        let recorder = py.detach(|| {
            self.check_logits()?;
            let tokens = self.tokens(text, true)?;
            let mut recorder = Recorder::default().with_routes(self.facts.model.spec());
            recorder.logits = Some(self.logit_array(tokens.len())?);
            self.scored(tokens, recorder)
        })?;
        let logits = match recorder.logits {
            Some(logits) => Some(logits.array(py)?),
            None => None,
        };
        let routes = match recorder.routes {
            Some(routes) => Some(arrays::routes(py, &routes)?),
            None => None,
        };
        Ok((logits, routes))
    }

    /// Probabilities of the tokens of a text, from the second on.
    #[pyo3(signature = (text, *, top = 1))]
    fn score(&self, py: Python<'_>, text: TextOrTokens, top: usize) -> PyResult<Vec<PyRank>> {
        py.detach(|| {
            self.check_logits()?;
            let tokens = self.tokens(text, true)?;
            let mut recorder = Recorder::default();
            recorder.ranks = Some(Ranks::new(tokens.clone(), self.facts.vocab, top));
            let recorder = self.scored(tokens, recorder)?;
            let Some(Ranks { ranks, .. }) = recorder.ranks else { return Ok(Vec::new()) };
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
    fn scored(&self, tokens: Vec<u32>, mut recorder: Recorder) -> PyResult<Recorder> {
        let cancel = recorder.cancel.clone();
        let recorder = self.worker.call(&cancel, move |model| {
            model.model().check(&tokens)?;
            score(model, &tokens, &mut recorder)?;
            Ok(recorder)
        })?;
        match recorder.failure() {
            Some(sentence) => Err(raised(sentence)),
            None => Ok(recorder),
        }
    }
}

/// Gives options a seed of their own. Returns them as they are resolved against the defaults of a model.
fn seeded(defaults: &Defaults, options: &mut GenerationOptions) -> PyResult<Generation> {
    let generation = defaults.generation(options).map_err(raised)?;
    options.seed = Some(generation.sampling.seed);
    Ok(generation)
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
    let question = match messages.pop() {
        Some(question) => question.content,
        None => String::new(),
    };
    conversation.set_messages(messages);
    Ok((conversation, question))
}
