//! Several texts in shared passes, as an iterator of Python.

use std::sync::{Arc, Mutex};

use pyo3::prelude::*;
use pyo3::types::PyTuple;
use serde_json::Value;
use sws::{Cancel, End, Generated, LoadedModel, Request};

use crate::worker::{ModelThread, PendingSteps, Process, Step, lock};
use crate::{raised, sentence};

/// A text that is over, with its number among the prompts.
#[pyclass(frozen, get_all, name = "Generated", module = "sws")]
pub(crate) struct PyGenerated {
    number: usize,
    text: String,
    tokens: Vec<u32>,
    /// `None` if the text depends on no seed.
    seed: Option<u64>,
    /// The reason of its end.
    end: String,
}

type TextsSteps = PendingSteps<(usize, Result<Generated, String>), ()>;

/// Several texts that are being generated.
#[pyclass(frozen, name = "Texts", module = "sws")]
pub(crate) struct PyTexts {
    /// `None` once all texts are over. Locked without the lock of the interpreter.
    steps: Mutex<Option<TextsSteps>>,
    /// The seed of each.
    seeds: Vec<Option<u64>>,
    cancel: Cancel,
    process: Process,
}

impl PyTexts {
    /// Begins the texts. Called without the lock of the interpreter.
    pub(crate) fn begin(
        worker: &Arc<ModelThread>,
        requests: Vec<Request>,
        seeds: Vec<Option<u64>>,
    ) -> PyResult<PyTexts> {
        let cancel = Cancel::new();
        let cancelled = cancel.clone();
        let steps = worker.begin(&cancel, move |model: &mut LoadedModel, asked| {
            let mut texts = model.generate_all(requests)?.cancelled_by(cancelled.clone());
            asked.begun();
            while asked.is_wanted() {
                let Some((number, made)) = texts.next() else { break };
                asked.item((number, made.map_err(sentence)));
            }
            // Texts that nobody waits for end.
            cancelled.cancel();
            texts.for_each(drop);
            Ok(())
        })?;
        let steps = Mutex::new(Some(steps));
        let process = worker.process();
        Ok(PyTexts { steps, seeds, cancel, process })
    }

    fn advance(&self) -> PyResult<Option<PyGenerated>> {
        // Before the lock, which another thread may have held when the process forked.
        self.process.check()?;
        let mut steps = lock(&self.steps);
        let Some(running) = &*steps else { return Ok(None) };
        match running.next() {
            Ok(Step::Item((number, Ok(made)))) => {
                let Generated { text, tokens, end, .. } = made;
                let seed = self.seeds.get(number).copied().flatten();
                Ok(Some(PyGenerated { number, text, tokens, seed, end: end_name(end) }))
            }
            // The others go on, and are read by further calls.
            Ok(Step::Item((number, Err(sentence)))) => {
                Err(raised(format!("text {number}: {sentence}")))
            }
            Ok(Step::Failed(sentence)) => {
                *steps = None;
                Err(raised(sentence))
            }
            Ok(Step::Begun | Step::Over(())) => {
                *steps = None;
                Ok(None)
            }
            Err(signal) => {
                *steps = None;
                Err(signal)
            }
        }
    }
}

#[pymethods]
impl PyTexts {
    fn __iter__(texts: PyRef<'_, Self>) -> PyRef<'_, Self> {
        texts
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<PyGenerated>> {
        py.detach(|| self.advance())
    }

    /// Ends all texts, so that the model can continue others. A fork leaves them to its parent.
    fn close(&self, py: Python<'_>) {
        if self.process.is_this() {
            self.cancel.cancel();
            py.detach(|| drop(lock(&self.steps).take()));
        }
    }

    fn __enter__(texts: PyRef<'_, Self>) -> PyRef<'_, Self> {
        texts
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyTuple>) {
        self.close(py);
    }
}

#[pymethods]
impl PyGenerated {
    fn __str__(&self) -> String {
        self.text.clone()
    }

    fn __repr__(&self) -> String {
        format!("Generated(number={}, text={:?}, end={:?})", self.number, self.text, self.end)
    }
}

/// The name of an end in JSON.
pub(crate) fn end_name(end: End) -> String {
    match serde_json::to_value(end) {
        Ok(Value::String(name)) => name,
        _ => String::new(),
    }
}
