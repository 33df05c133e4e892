//! Facts about the model, for clients of Ollama.

use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Value, json};
use sws_engine::memory;

use crate::app::App;
use crate::failure::Failure;
use crate::fields::{Nothing, parse};
use crate::served::Served;

/// The fields of `/api/show`.
#[derive(Debug, Deserialize)]
pub(crate) struct ShowFields {
    #[serde(default)]
    model: Option<String>,
    /// Name of the model, in the spelling of older clients.
    #[serde(default)]
    name: Option<String>,
    #[serde(default, rename = "verbose")]
    _verbose: Option<Nothing>,
}

/// `/api/version`.
pub(crate) fn version() -> Value {
    json!({"version": env!("CARGO_PKG_VERSION")})
}

/// `/api/tags`.
pub(crate) fn tags(app: &App) -> Result<Value, Failure> {
    let models: Vec<Value> = app.all()?.iter().map(|served| model(served)).collect();
    Ok(json!({ "models": models }))
}

/// `/api/ps`: the model that is loaded.
pub(crate) fn running(app: &App) -> Result<Value, Failure> {
    let served = app.current()?;
    if !served.engine.is_loaded() {
        return Ok(json!({"models": []}));
    }
    let mut model = model(&served);
    let left = served.engine.left(app.clock.now());
    let end = left.map(|left| app.clock.unix_seconds().saturating_add(left.as_secs() as i64));
    // Without an end it stays loaded until another one is needed.
    model["expires_at"] = end.map_or_else(|| "9999-12-31T23:59:59Z".to_owned(), time).into();
    model["size"] = json!(memory());
    model["size_vram"] = 0.into();
    model["context_length"] = served.limit.into();
    Ok(json!({"models": [model]}))
}

/// `/api/show`.
pub(crate) fn show(app: &App, served: &Arc<Served>, body: &[u8]) -> Result<Value, Failure> {
    let ShowFields { model, name, .. } = parse(body)?;
    let asked = model.or(name).unwrap_or_default();
    if !served.is_named(&asked) {
        return Err(app.no_model(&asked));
    }
    let spec = served.model.spec();
    let [parameters, _] = spec.parameters();
    let template = served.text.template();
    Ok(json!({
        "modelfile": "",
        "parameters": "",
        "license": "",
        "template": template.map_or("", |template| template.source()),
        "modified_at": time(served.identity.created),
        "details": details(served),
        "model_info": {
            "general.architecture": "sws",
            "general.parameter_count": parameters,
            "sws.context_length": served.limit,
            "sws.block_count": spec.layers.len(),
            "sws.vocab_size": served.vocab,
        },
        "capabilities": capabilities(served),
    }))
}

fn capabilities(served: &Served) -> Vec<&'static str> {
    let thinks = |think| served.text.template().is_some_and(|it| it.thinking(think).is_some());
    let mut capabilities = vec!["completion"];
    if served.tools().is_some() {
        capabilities.push("tools");
    }
    if thinks(true) {
        capabilities.push("thinking");
    }
    capabilities
}

fn model(served: &Served) -> Value {
    let manifest = served.model.manifest();
    let bytes: u64 = manifest.pieces.iter().map(|piece| piece.stored_bytes()).sum();
    json!({
        "name": served.id(),
        "model": served.id(),
        "modified_at": time(served.identity.created),
        "size": bytes,
        "digest": manifest.model.fingerprint,
        "details": details(served),
    })
}

fn details(served: &Served) -> Value {
    let [parameters, _] = served.model.spec().parameters();
    json!({
        "parent_model": "",
        "format": "sws",
        "family": "",
        "families": [],
        "parameter_size": format!("{:.1}B", parameters as f64 / 1e9),
        "quantization_level": "",
    })
}

/// A time in UTC, in the format of RFC 3339.
pub(super) fn time(unix_seconds: i64) -> String {
    const DAY: i64 = 24 * 60 * 60;
    let seconds = unix_seconds.rem_euclid(DAY);
    let [year, month, day] = date(unix_seconds.div_euclid(DAY));
    let [hour, minute, second] = [seconds / 3600, seconds / 60 % 60, seconds % 60];
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// Year, month and day of a number of days since 1970, in the Gregorian calendar. Years are counted from
/// March on, so that a leap day is the last of its year.
fn date(days: i64) -> [i64; 3] {
    /// Days of 400 years, after which the calendar repeats, and from March of year 0 to 1970.
    const ERA: i64 = 146_097;
    const EPOCH: i64 = 719_468;
    let days = days + EPOCH;
    let era = days.div_euclid(ERA);
    let day_of_era = days.rem_euclid(ERA);
    let leap_days = day_of_era / 1460 - day_of_era / 36_524 + day_of_era / 146_096;
    let year_of_era = (day_of_era - leap_days) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    [year, month, day]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_the_calendar() {
        for (seconds, expected) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_795_988_347, "2026-11-29T21:39:07Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
            (-1, "1969-12-31T23:59:59Z"),
        ] {
            assert_eq!(time(seconds), expected);
        }
    }
}
