//! Values of JSON as objects of Python.

use pyo3::prelude::*;

/// Parses JSON with Python's module of that name.
pub(crate) fn object<'py>(py: Python<'py>, json: &str) -> PyResult<Bound<'py, PyAny>> {
    py.import("json")?.call_method1("loads", (json,))
}
