//! A text that is being generated, as an iterator of Python.

use std::sync::{Arc, Mutex};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};
use serde_json::to_string;
use sws::{Cancel, Counters, End, Gauge, Generate, Generated, LoadedModel, Metrics, Piece};
use sws_cache::Trace;

use crate::arrays::LogitArray;
use crate::recorder::Recorder;
use crate::texts::end_name;
use crate::worker::{ModelThread, PendingSteps, Process, Step, StepRequests, lock};
use crate::{arrays, json, raised};

/// The end of a text, with what was recorded until then.
pub(crate) struct TextEnd {
    end: End,
    /// The sentence of an error that ended it.
    failure: Option<String>,
    /// Metrics of `sws run --json`, as JSON.
    details: String,
    /// Counters after the last pass.
    counters: Option<Counters>,
    routes: Option<Trace>,
    logits: Option<LogitArray>,
    /// True if a token visits layers several times.
    is_looped: bool,
}

type TextSteps = PendingSteps<Piece, TextEnd>;

/// A text that is being generated.
#[pyclass(frozen, name = "Text", module = "sws")]
pub(crate) struct PyText {
    /// `None` once the text is over. Locked without the lock of the interpreter.
    steps: Mutex<Option<TextSteps>>,
    so_far: Mutex<SoFar>,
    cancel: Cancel,
    process: Process,
    gauge: Option<Gauge>,
    /// Counters before the text.
    began: Option<Counters>,
    /// `None` if the text depends on no seed.
    seed: Option<u64>,
}

#[derive(Default)]
struct SoFar {
    tokens: Vec<u32>,
    text: String,
    reasoning: String,
    end: Option<TextEnd>,
}

/// Facts about a model that its texts need.
pub(crate) struct TextFacts {
    pub(crate) gauge: Option<Gauge>,
    pub(crate) seed: Option<u64>,
}

/// Sends the pieces of a text as they are asked for, until it ends. Returns its sentence, too, if it fails.
pub(crate) fn follow<'m>(
    generate: Generate<'m>,
    recorder: &'m mut Recorder,
    asked: &StepRequests<Piece, TextEnd>,
) -> (Generated, Option<String>) {
    let generate = generate.cancelled_by(recorder.cancel.clone());
    let mut generate = match recorder.records() {
        true => generate.observed_by(recorder),
        false => generate,
    };
    asked.begun();
    let mut failure = None;
    while failure.is_none() && asked.is_wanted() {
        match generate.next() {
            Some(Ok(piece)) => asked.item(piece),
            Some(Err(error)) => failure = Some(error.to_string()),
            None => break,
        }
    }
    (generate.finish(), failure)
}

impl TextEnd {
    /// The end of a text, with what was recorded of it.
    pub(crate) fn of(
        model: &LoadedModel,
        (made, failure): (Generated, Option<String>),
        recorder: Recorder,
    ) -> TextEnd {
        let failure = failure.or(recorder.failure().cloned());
        let Recorder { mut routes, logits, .. } = recorder;
        if let Some(routes) = &mut routes {
            routes.end_sequence();
        }
        TextEnd {
            end: made.end,
            failure,
            // Numbers, names and lists have a form in JSON.
            details: to_string(&model.metrics(&made)).unwrap_or_default(),
            counters: model.gauge().as_ref().map(Gauge::read),
            routes,
            logits,
            is_looped: model.model().spec().looped.is_some(),
        }
    }

    /// Refuses a text that has failed, with its sentence.
    fn check(&self) -> PyResult<()> {
        match &self.failure {
            Some(sentence) => Err(raised(sentence)),
            None => Ok(()),
        }
    }
}

impl PyText {
    /// Begins a text. Called without the lock of the interpreter.
    pub(crate) fn begin(
        worker: &Arc<ModelThread>,
        facts: TextFacts,
        cancel: Cancel,
        work: impl FnOnce(&mut LoadedModel, &StepRequests<Piece, TextEnd>) -> sws::Result<TextEnd>
        + Send
        + 'static,
    ) -> PyResult<PyText> {
        let steps = worker.begin(&cancel, work)?;
        let TextFacts { gauge, seed } = facts;
        let began = gauge.as_ref().map(Gauge::read);
        let steps = Mutex::new(Some(steps));
        let so_far = Mutex::default();
        let process = worker.process();
        Ok(PyText { steps, so_far, cancel, process, gauge, began, seed })
    }

    /// Takes a step. Returns the text of a piece; `None` if the text is over.
    fn advance(&self) -> PyResult<Option<String>> {
        // Before the lock, which another thread may have held when the process forked.
        self.process.check()?;
        let mut steps = lock(&self.steps);
        let Some(running) = &*steps else {
            if let Some(end) = &lock(&self.so_far).end {
                end.check()?;
            }
            return Ok(None);
        };
        match running.next() {
            Ok(step) => match self.absorb(step) {
                Some(Ok(text)) => Ok(Some(text)),
                over => {
                    *steps = None;
                    over.transpose()
                }
            },
            Err(signal) => {
                self.take_rest(&mut steps);
                Err(signal)
            }
        }
    }

    /// Takes the rest of a text that was cancelled in a step, which ends at the next layer.
    fn take_rest(&self, steps: &mut Option<TextSteps>) {
        let Some(running) = steps.take() else { return };
        while let Some(step) = running.take() {
            if !matches!(self.absorb(step), Some(Ok(_))) {
                break;
            }
            running.ask();
        }
    }

    /// Keeps the result of a step. Returns the text of a piece; `None` at the end of the text.
    fn absorb(&self, step: Step<Piece, TextEnd>) -> Option<PyResult<String>> {
        let mut so_far = lock(&self.so_far);
        match step {
            Step::Begun => Some(Ok(String::new())),
            Step::Item(Piece { token, text, reasoning }) => {
                so_far.tokens.extend(token);
                so_far.text += &text;
                so_far.reasoning += &reasoning;
                Some(Ok(text))
            }
            Step::Over(end) => {
                let failed = end.check().err();
                so_far.end = Some(end);
                failed.map(Err)
            }
            Step::Failed(sentence) => Some(Err(raised(sentence))),
        }
    }

    /// Returns a record of a text that is over.
    fn recorded<T>(&self, of: impl FnOnce(&TextEnd) -> Option<T>, option: &str) -> PyResult<T> {
        let so_far = lock(&self.so_far);
        let Some(end) = &so_far.end else {
            return Err(PyValueError::new_err("the text is not over"));
        };
        end.check()?;
        let Some(record) = of(end) else {
            return Err(PyValueError::new_err(format!(
                "nothing of this was recorded; ask for it with {option}=True"
            )));
        };
        Ok(record)
    }
}

#[pymethods]
impl PyText {
    fn __iter__(text: PyRef<'_, Self>) -> PyRef<'_, Self> {
        text
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<String>> {
        py.detach(|| self.advance())
    }

    /// Reads the text to its end, and returns all of it.
    fn read(&self, py: Python<'_>) -> PyResult<String> {
        py.detach(|| {
            while self.advance()?.is_some() {}
            Ok(lock(&self.so_far).text.clone())
        })
    }

    /// Ends the text at the next layer; may be called from any thread.
    fn cancel(&self) {
        self.cancel.cancel();
    }

    /// Ends the text, and waits until the model can continue another. A fork leaves it to its parent.
    fn close(&self, py: Python<'_>) {
        if !self.process.is_this() {
            return;
        }
        self.cancel.cancel();
        py.detach(|| {
            let mut steps = lock(&self.steps);
            if let Some(running) = &*steps {
                running.ask();
            }
            self.take_rest(&mut steps);
        });
    }

    fn __enter__(text: PyRef<'_, Self>) -> PyRef<'_, Self> {
        text
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyTuple>) {
        self.close(py);
    }

    fn __str__(&self) -> String {
        self.text()
    }

    #[getter]
    fn text(&self) -> String {
        lock(&self.so_far).text.clone()
    }

    #[getter]
    fn reasoning(&self) -> String {
        lock(&self.so_far).reasoning.clone()
    }

    #[getter]
    fn tokens(&self) -> Vec<u32> {
        lock(&self.so_far).tokens.clone()
    }

    #[getter]
    fn seed(&self) -> Option<u64> {
        self.seed
    }

    /// The reason of the end; None while there is more.
    #[getter]
    fn end(&self) -> Option<String> {
        let so_far = lock(&self.so_far);
        let end = so_far.end.as_ref()?;
        Some(match end.failure {
            Some(_) => "failed".to_owned(),
            None => end_name(end.end),
        })
    }

    /// The cost so far.
    #[getter]
    fn metrics(&self) -> Option<PyMetrics> {
        let began = self.began.as_ref()?;
        let so_far = lock(&self.so_far);
        if let Some(TextEnd { counters: Some(counters), .. }) = &so_far.end {
            return Some(PyMetrics::between(began, counters));
        }
        Some(PyMetrics::between(began, &self.gauge.as_ref()?.read()))
    }

    /// The metrics of `sws run --json`; None before the end.
    #[getter]
    fn details<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let details = match &lock(&self.so_far).end {
            Some(end) => end.details.clone(),
            None => return Ok(None),
        };
        Ok(Some(json::object(py, &details)?))
    }

    /// The experts of each layer and token.
    #[getter]
    fn routes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let routes = self.recorded(|end| end.routes.clone(), "routes")?;
        arrays::routes(py, &routes)
    }

    /// The logits from which each token was chosen. It is the same memory each time.
    #[getter]
    fn logits<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.recorded(|end| Some(end.logits.as_ref()?.share(py)), "logits")?.array(py)
    }

    /// The routes as the contents of a file for `sws replay`.
    #[getter]
    fn trace<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        if self.recorded(|end| Some(end.is_looped), "routes")? {
            return Err(PyValueError::new_err(
                "the model visits layers several times for a token, which a trace cannot tell apart; routes has every visit",
            ));
        }
        let trace = self.recorded(|end| end.routes.as_ref().map(Trace::write), "routes")?;
        Ok(PyBytes::new(py, &trace))
    }
}

/// The cost of a text so far.
#[pyclass(frozen, get_all, name = "Metrics", module = "sws")]
pub(crate) struct PyMetrics {
    tokens: u64,
    seconds: f64,
    tokens_per_second: f64,
    bytes_read: u64,
    hits: u64,
    late: u64,
    misses: u64,
}

impl PyMetrics {
    fn between(before: &Counters, after: &Counters) -> PyMetrics {
        let metrics = Metrics::between(before, after);
        // The time that Python takes between two tokens is not counted.
        let seconds = after.passes.saturating_sub(before.passes).as_secs_f64();
        let tokens = metrics.tokens;
        let mut hits = 0;
        let mut late = 0;
        let mut misses = 0;
        for layer in &metrics.experts.layers {
            hits += layer.hits;
            late += layer.late;
            misses += layer.misses;
        }
        PyMetrics {
            tokens,
            seconds,
            tokens_per_second: if seconds > 0.0 { tokens as f64 / seconds } else { 0.0 },
            bytes_read: metrics.disk.bytes,
            hits,
            late,
            misses,
        }
    }
}

#[pymethods]
impl PyMetrics {
    fn __repr__(&self) -> String {
        let PyMetrics { tokens, seconds, tokens_per_second, bytes_read, hits, late, misses } = self;
        format!(
            "Metrics(tokens={tokens}, seconds={seconds:.3}, tokens_per_second={tokens_per_second:.2}, bytes_read={bytes_read}, hits={hits}, late={late}, misses={misses})"
        )
    }
}
