//! Numbers as arrays of NumPy, which is asked for them by name and not linked.

use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyTuple};

use crate::raised;

/// A new array of these numbers, each of four bytes, with a dtype of NumPy.
pub(crate) fn array<'py>(
    py: Python<'py>,
    dtype: &str,
    numbers: impl ExactSizeIterator<Item = [u8; 4]>,
    shape: &[usize],
) -> PyResult<Bound<'py, PyAny>> {
    let numpy = py.import("numpy").map_err(|_| {
        raised("logits and routes are NumPy arrays, and this Python has no numpy; install it with `pip install numpy`")
    })?;
    let bytes = PyByteArray::new_with(py, 4 * numbers.len(), |bytes| {
        for (to, number) in bytes.chunks_exact_mut(4).zip(numbers) {
            to.copy_from_slice(&number);
        }
        Ok(())
    })?;
    let flat = numpy.call_method1("frombuffer", (bytes, dtype))?;
    flat.call_method1("reshape", (PyTuple::new(py, shape)?,))
}

/// Logits, [rows, vocab].
pub(crate) fn logits<'py>(
    py: Python<'py>,
    logits: &[f32],
    vocab: usize,
) -> PyResult<Bound<'py, PyAny>> {
    let rows = logits.len() / vocab.max(1);
    array(py, "<f4", logits.iter().map(|logit| logit.to_le_bytes()), &[rows, vocab])
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
            experts.extend(trace.experts(token, layer).iter().map(|&expert| u32::from(expert)));
        }
    }
    let experts = experts.into_iter().map(u32::to_le_bytes);
    array(py, "<u4", experts, &[layers, tokens, top_k])
}
