//! Numbers as arrays of NumPy, which is asked for them by name and not linked.

use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes, PySlice, PyTuple};

use crate::raised;

/// Little-endian f32.
const LOGIT: &str = "<f4";

/// The module of NumPy.
pub(crate) fn numpy(py: Python<'_>) -> PyResult<Bound<'_, PyModule>> {
    let Ok(numpy) = py.import("numpy") else {
        return Err(raised(
            "logits and routes are NumPy arrays, and this Python has no numpy; install it with `pip install numpy`",
        ));
    };
    Ok(numpy)
}

/// A new array of these numbers, each of four bytes, with a dtype of NumPy.
fn array<'py>(
    py: Python<'py>,
    dtype: &str,
    numbers: impl ExactSizeIterator<Item = [u8; 4]>,
    shape: &[usize],
) -> PyResult<Bound<'py, PyAny>> {
    let bytes = PyByteArray::new_with(py, 4 * numbers.len(), |bytes| {
        copy_numbers(numbers, bytes);
        Ok(())
    })?;
    let flat = numpy(py)?.call_method1("frombuffer", (bytes, dtype))?;
    flat.call_method1("reshape", (PyTuple::new(py, shape)?,))
}

fn copy_numbers(numbers: impl Iterator<Item = [u8; 4]>, bytes: &mut [u8]) {
    for (to, number) in bytes.chunks_exact_mut(4).zip(numbers) {
        to.copy_from_slice(&number);
    }
}

/// Logits of tokens in an array that Python gets, written once, as passes make them. Rows take memory when they
/// are written.
pub(crate) struct LogitArray {
    /// [rows, vocab].
    array: Py<PyAny>,
    vocab: usize,
    /// Number of rows that are written.
    len: usize,
    /// The sentence of an error. No rows are written after it.
    pub(crate) failure: Option<String>,
}

impl LogitArray {
    /// An array with room for so many rows.
    pub(crate) fn new(py: Python<'_>, rows: usize, vocab: usize) -> PyResult<LogitArray> {
        let array = numpy(py)?.call_method1("empty", ((rows, vocab), LOGIT))?.unbind();
        Ok(LogitArray { array, vocab, len: 0, failure: None })
    }

    /// Writes rows after the last. Called by the thread of a model.
    pub(crate) fn push(&mut self, logits: &[f32]) {
        if self.failure.is_some() {
            return;
        }
        let written = Python::try_attach(|py| {
            for row in logits.chunks_exact(self.vocab) {
                let numbers = row.iter().copied().map(f32::to_le_bytes);
                let bytes = PyBytes::new_with(py, 4 * row.len(), |bytes| {
                    copy_numbers(numbers, bytes);
                    Ok(())
                })?;
                let row = numpy(py)?.call_method1("frombuffer", (bytes, LOGIT))?;
                self.array.bind(py).set_item(self.len, row)?;
                self.len += 1;
            }
            PyResult::Ok(())
        });
        self.failure = match written {
            Some(Ok(())) => None,
            Some(Err(error)) => Some(format!("logits cannot be recorded: {error}")),
            None => Some("logits cannot be recorded while Python ends".to_owned()),
        };
    }

    /// Another reference to the array.
    pub(crate) fn share(&self, py: Python<'_>) -> LogitArray {
        LogitArray { array: self.array.clone_ref(py), failure: self.failure.clone(), ..*self }
    }

    /// The rows that are written.
    pub(crate) fn array<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.array.bind(py).get_item(PySlice::new(py, 0, self.len as isize, 1))
    }
}

/// Routes, [layers, tokens, k].
pub(crate) fn routes<'py>(
    py: Python<'py>,
    trace: &sws_cache::Trace,
) -> PyResult<Bound<'py, PyAny>> {
    let sws_cache::history::HistoryShape { layers, top_k, .. } = trace.shape();
    let tokens = trace.token_count();
    let mut experts = Vec::with_capacity(layers * tokens * top_k);
    for layer in 0..layers {
        for token in 0..tokens {
            experts.extend(trace.experts(token, layer).iter().copied().map(u32::from));
        }
    }
    let experts = experts.into_iter().map(u32::to_le_bytes);
    array(py, "<u4", experts, &[layers, tokens, top_k])
}
