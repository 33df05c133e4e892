//! `/metrics`: counters in the format of Prometheus.

use std::fmt::Write;

use axum::body::Body;
use axum::http::Response;
use axum::http::header::{CONTENT_TYPE, HeaderValue};
use sws_engine::{Gauge, SlotClass, TierCounts, WeightKind, memory};

use crate::app::App;
use crate::counts::number;
use crate::served::Served;

/// `/metrics`.
pub(crate) fn metrics(app: &App) -> Response<Body> {
    let mut out = String::new();
    app.counts.write(&mut out);
    let waiting = app.queue.len() as f64;
    number(&mut out, "sws_requests_waiting", "gauge", "Texts that wait for a sequence.", waiting);
    let positions = app.counts.positions.get() as f64;
    let current = app.current().ok();
    let room = current.map_or(f64::INFINITY, |served| (served.texts * served.limit) as f64);
    let help = "Share of the positions of all texts at a time that running texts hold.";
    number(&mut out, "sws_kv_used_ratio", "gauge", help, positions / room);
    if let Some(bytes) = memory() {
        number(&mut out, "sws_resident_bytes", "gauge", "Memory of the process.", bytes as f64);
    }
    let loads = app.counts.loads.get() as f64;
    let help = "Times that a model was loaded.";
    number(&mut out, "sws_model_loads_total", "counter", help, loads);
    let name = "sws_model_loaded";
    let _ = writeln!(out, "# HELP {name} 1 for a model that is loaded.\n# TYPE {name} gauge");
    for served in app.all().unwrap_or_default() {
        let is_loaded = u8::from(served.engine.is_loaded());
        let _ = writeln!(out, "{name}{{{}}} {is_loaded}", label(served));
    }
    if let Ok(served) = app.current() {
        let label = if app.is_several() { label(&served) } else { String::new() };
        ModelMetrics { out: &mut out, label }.write(&served);
    }
    let mut response = Response::new(Body::from(out));
    let kind = HeaderValue::from_static("text/plain; version=0.0.4");
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}

/// The label with the id of a model.
fn label(served: &Served) -> String {
    let id = served.id().replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    format!("model=\"{id}\"")
}

/// Metrics of a model. Those of one of several models have its id as a label.
struct ModelMetrics<'o> {
    out: &'o mut String,
    /// The label with the id; empty without one.
    label: String,
}

impl ModelMetrics<'_> {
    fn write(&mut self, served: &Served) {
        let version = env!("CARGO_PKG_VERSION");
        let fingerprint = &served.identity.fingerprint;
        let labels = format!("version=\"{version}\",fingerprint=\"{fingerprint}\"");
        self.rows("sws_info", "gauge", "The model and the program.", [(labels, 1.0)]);
        if let Some(budget) = served.budget() {
            number(self.out, "sws_budget_bytes", "gauge", "The memory budget.", budget as f64);
        }
        if let Some(plan) = &served.plan {
            let help =
                "Slots for experts, and further ones that are lent while no prompt is computed.";
            let rows = [("own", &plan.slots), ("lent", &plan.lent)].map(|(kind, classes)| {
                (format!("kind=\"{kind}\""), SlotClass::count_of(classes) as f64)
            });
            self.rows("sws_expert_slots", "gauge", help, rows);
        }
        if let Some(gauge) = served.engine.gauge() {
            self.write_run(&gauge);
        }
    }

    /// The counters of the run, which begin at zero whenever the model is loaded.
    fn write_run(&mut self, gauge: &Gauge) {
        let counters = gauge.read();
        let help = "Bytes of contexts that texts do not need, which hold experts.";
        self.one("sws_context_lent_bytes", "gauge", help, counters.context_lent as f64);
        let help = "Bytes for structured output that no request needs, which hold experts.";
        self.one("sws_forms_lent_bytes", "gauge", help, counters.structured_lent as f64);
        let bytes = WeightKind::ALL.iter().zip(counters.bytes);
        let bytes = bytes.map(|(kind, bytes)| (format!("kind=\"{}\"", kind.name()), bytes as f64));
        let help = "Bytes of weights that have arrived.";
        self.rows("sws_read_bytes_total", "counter", help, bytes);
        let mut outcomes = [("hit", 0), ("late", 0), ("miss", 0)];
        for layer in counters.layers.values() {
            for ((_, count), more) in
                outcomes.iter_mut().zip([layer.hits, layer.late, layer.misses])
            {
                *count += more;
            }
        }
        let rows =
            outcomes.map(|(outcome, count)| (format!("outcome=\"{outcome}\""), count as f64));
        let help = "Experts that routers chose: in memory, on their way, or neither.";
        self.rows("sws_expert_requests_total", "counter", help, rows);
        let device = counters.device_bytes as f64;
        self.one("sws_device_bytes_total", "counter", "Bytes read from the device.", device);
        if !counters.drives.is_empty() {
            let mut bytes = Vec::new();
            let mut left_out = Vec::new();
            for (number, drive) in counters.drives.iter().enumerate() {
                let label = format!("drive=\"{number}\"");
                bytes.push((label.clone(), drive.bytes as f64));
                left_out.push((label, f64::from(u8::from(drive.is_left_out))));
            }
            let help = "Bytes read from each drive: the model's own, and those of its copies.";
            self.rows("sws_drive_bytes_total", "counter", help, bytes);
            let help = "1 for a drive that failed and is left out.";
            self.rows("sws_drive_left_out", "gauge", help, left_out);
        }
        if let Some(TierCounts { usage, hits, copies, .. }) = &counters.tier {
            let help = "Bytes of experts on the graphics card.";
            self.one("sws_vram_bytes", "gauge", help, usage.bytes as f64);
            let help = "Bytes that may be used there.";
            self.one("sws_vram_limit_bytes", "gauge", help, usage.limit as f64);
            let help = "Experts that were computed there.";
            self.one("sws_vram_hits_total", "counter", help, *hits as f64);
            let help = "Experts that were copied there.";
            self.one("sws_vram_copies_total", "counter", help, *copies as f64);
            let failed = f64::from(u8::from(usage.failure.is_some()));
            self.one(
                "sws_vram_failed",
                "gauge",
                "1 for a card that failed and is left alone.",
                failed,
            );
        }
        let stalls = counters.clocks.stalls.time.as_secs_f64();
        self.one("sws_stall_seconds_total", "counter", "Waits of the computation.", stalls);
        let passes = counters.passes.as_secs_f64();
        self.one("sws_pass_seconds_total", "counter", "Time in passes.", passes);
        let tokens = counters.tokens as f64;
        self.one("sws_tokens_total", "counter", "Tokens that went through passes.", tokens);
    }

    fn one(&mut self, name: &str, kind: &str, help: &str, value: f64) {
        self.rows(name, kind, help, [(String::new(), value)]);
    }

    /// Rows of a metric, each with labels of its own.
    fn rows(
        &mut self,
        name: &str,
        kind: &str,
        help: &str,
        rows: impl IntoIterator<Item = (String, f64)>,
    ) {
        let _ = writeln!(self.out, "# HELP {name} {help}\n# TYPE {name} {kind}");
        for (labels, value) in rows {
            let mut labels = vec![labels.as_str(), &self.label];
            labels.retain(|label| !label.is_empty());
            let _ = match labels.as_slice() {
                [] => writeln!(self.out, "{name} {value}"),
                labels => writeln!(self.out, "{name}{{{}}} {value}", labels.join(",")),
            };
        }
    }
}
