//! Plans of memory, without loading anything.

use std::path::PathBuf;

use pyo3::prelude::*;
use pyo3::types::PyDict;
use serde_json::{Map, Value, json};
use sws::{Model, PerToken, SlotClass};

use crate::options::ModelOptions;
use crate::{json as to_python, raised};

/// The division of a budget: the fields of `sws plan --json` that need no measuring.
#[pyfunction]
#[pyo3(signature = (model, **options))]
pub(crate) fn plan<'py>(
    py: Python<'py>,
    model: PathBuf,
    options: Option<&Bound<'py, PyDict>>,
) -> PyResult<Bound<'py, PyAny>> {
    let options = ModelOptions::read(options)?;
    let planned = py.detach(|| planned(&model, options).map_err(raised))?;
    to_python::object(py, &planned.to_string())
}

fn planned(path: &std::path::Path, options: ModelOptions) -> sws::Result<Value> {
    let model = Model::open(path)?;
    let mut planning = options.loader(&model)?.planning()?;
    if let Some(hits) = model.earlier_hits() {
        planning.planner.set_hits(hits);
    }
    let plan = planning.planner.plan(planning.ram).map_err(|error| model.error(error))?;
    let mut ledger: Map<String, Value> = Map::new();
    for (what, bytes) in plan.ledger.lines() {
        ledger.insert(what.name().to_owned(), bytes.into());
    }
    let PerToken { experts, hit_rate, .. } = plan.per_token;
    Ok(json!({
        "model": path,
        "weight_bytes": planning.planner.weights(),
        "smallest_budget": planning.planner.smallest(),
        "budget": planning.ram,
        "ledger": ledger,
        "experts_stream": plan.experts_stream,
        "pinned_pieces": plan.pinned.len(),
        "plan": {
            "slots": SlotClass::count_of(&plan.slots),
            "lent": SlotClass::count_of(&plan.lent),
            "chunk": plan.chunk,
            "context": plan.context,
            "hit_rate": (experts > 0).then_some(hit_rate),
            "read_bytes_per_token": plan.per_token.read(),
        },
    }))
}
