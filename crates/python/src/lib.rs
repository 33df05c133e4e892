//! The module `sws` of Python: the library, with a thread for each model, so that Python's threads
//! run while the engine works, and Ctrl-C ends a text.
//!
//! `python/sws/__init__.pyi` describes it to Python. Nothing but the macros of PyO3 is `unsafe`.

mod arrays;
mod json;
mod model;
mod options;
mod plan;
mod recorder;
mod score;
mod text;
mod texts;
mod worker;

use pyo3::create_exception;
use pyo3::exceptions::PyException;
use pyo3::prelude::*;

create_exception!(
    sws,
    Error,
    PyException,
    "A model that cannot be opened, loaded or run: one sentence that names the problem and the remedy."
);

/// The exception of an error of the library, with its sentence.
pub(crate) fn raised(error: impl std::fmt::Display) -> PyErr {
    Error::new_err(error.to_string())
}

/// The sentence of an error.
pub(crate) fn sentence(error: impl std::fmt::Display) -> String {
    error.to_string()
}

#[pymodule]
fn _sws(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("Error", module.py().get_type::<Error>())?;
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<model::PyModel>()?;
    module.add_class::<text::PyText>()?;
    module.add_class::<text::PyMetrics>()?;
    module.add_class::<texts::PyTexts>()?;
    module.add_class::<texts::PyGenerated>()?;
    module.add_class::<score::PyRank>()?;
    module.add_function(wrap_pyfunction!(plan::plan, module)?)
}
