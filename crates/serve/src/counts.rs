//! Counters of a server.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use sws::PrefixDiskCounts;

/// A counter that may be read while it changes.
#[derive(Debug, Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    pub(crate) fn add(&self, some: u64) {
        self.0.fetch_add(some, Ordering::Relaxed);
    }

    pub(crate) fn set(&self, number: u64) {
        self.0.store(number, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Upper limits of a histogram's buckets, in seconds.
const SECONDS: [f64; 12] = [0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 30.0, 120.0, 600.0];

/// A histogram of times.
#[derive(Debug, Default)]
pub(crate) struct Histogram {
    buckets: [Count; SECONDS.len()],
    count: Count,
    micros: Count,
}

impl Histogram {
    pub(crate) fn add(&self, time: Duration) {
        for (limit, bucket) in SECONDS.iter().zip(&self.buckets) {
            if time.as_secs_f64() <= *limit {
                bucket.add(1);
            }
        }
        self.count.add(1);
        self.micros.add(u64::try_from(time.as_micros()).unwrap_or(u64::MAX));
    }

    /// Writes the histogram in the format of Prometheus.
    pub(crate) fn write(&self, name: &str, help: &str, out: &mut String) {
        let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} histogram");
        for (limit, bucket) in SECONDS.iter().zip(&self.buckets) {
            let _ = writeln!(out, "{name}_bucket{{le=\"{limit}\"}} {}", bucket.get());
        }
        let count = self.count.get();
        let sum = self.micros.get() as f64 / 1e6;
        let _ = writeln!(out, "{name}_bucket{{le=\"+Inf\"}} {count}");
        let _ = writeln!(out, "{name}_sum {sum}\n{name}_count {count}");
    }
}

/// Counters of the prefix cache on disk.
#[derive(Debug, Default)]
pub(crate) struct DiskCounts {
    bytes: Count,
    files: Count,
    written: Count,
    tokens: Count,
    faults: Count,
}

impl DiskCounts {
    pub(crate) fn set(&self, counts: PrefixDiskCounts) {
        let PrefixDiskCounts { bytes, files, written, tokens, faults } = counts;
        self.bytes.set(bytes);
        self.files.set(files);
        self.written.set(written);
        self.tokens.set(tokens);
        self.faults.set(faults);
    }

    fn write(&self, out: &mut String) {
        let rows = [
            ("bytes", "gauge", "Bytes of the prefix cache on disk.", &self.bytes),
            ("files", "gauge", "Files of the prefix cache on disk.", &self.files),
            ("written_bytes_total", "counter", "Bytes of them that were written.", &self.written),
            ("tokens_total", "counter", "Tokens of prompts that were read.", &self.tokens),
            ("faults_total", "counter", "Files that were damaged or failed.", &self.faults),
        ];
        for (name, kind, help, count) in rows {
            number(out, &format!("sws_kv_disk_{name}"), kind, help, count.get() as f64);
        }
    }
}

/// All counters of a server.
#[derive(Debug, Default)]
pub(crate) struct ServerCounts {
    /// Number of texts with a sequence, and of positions in their sequences.
    pub(crate) running: Count,
    pub(crate) positions: Count,
    pub(crate) prompt_tokens: Count,
    /// Prompt tokens that were known from earlier texts.
    pub(crate) known_tokens: Count,
    pub(crate) new_tokens: Count,
    /// Number of prefixes in memory.
    pub(crate) kept: Count,
    /// Bytes of running sequences and kept prefixes, and the bytes available to them.
    pub(crate) states: [Count; 2],
    pub(crate) disk: DiskCounts,
    /// Number of times that a model was loaded.
    pub(crate) loads: Count,
    /// Time until a text gets a sequence.
    pub(crate) queue: Histogram,
    /// Time to a text's first token.
    pub(crate) first: Histogram,
    /// Time between two tokens of a text.
    pub(crate) between: Histogram,
    /// Responses by endpoint and status.
    responses: Mutex<BTreeMap<(&'static str, u16), u64>>,
}

impl ServerCounts {
    /// Counts a response.
    pub(crate) fn responded(&self, endpoint: &'static str, status: u16) {
        let mut responses = self.responses.lock().unwrap_or_else(PoisonError::into_inner);
        *responses.entry((endpoint, status)).or_default() += 1;
    }

    /// Records that the model is closed, with all its texts and prefixes.
    pub(crate) fn unloaded(&self) {
        let gone = [&self.running, &self.positions, &self.kept];
        for count in gone.into_iter().chain(&self.states) {
            count.set(0);
        }
    }

    /// Writes the counters in the format of Prometheus.
    pub(crate) fn write(&self, out: &mut String) {
        let name = "sws_requests_total";
        let _ = writeln!(out, "# HELP {name} Responses begun.\n# TYPE {name} counter");
        for ((endpoint, status), count) in
            &*self.responses.lock().unwrap_or_else(PoisonError::into_inner)
        {
            let labels = format!("endpoint=\"{endpoint}\",status=\"{status}\"");
            let _ = writeln!(out, "{name}{{{labels}}} {count}");
        }
        let prompt = self.prompt_tokens.get() as f64;
        let new = self.new_tokens.get() as f64;
        number(out, "sws_prompt_tokens_total", "counter", "Tokens of prompts.", prompt);
        number(out, "sws_generated_tokens_total", "counter", "New tokens.", new);
        let known = self.known_tokens.get() as f64;
        let help = "Tokens of prompts that were not computed again.";
        number(out, "sws_cached_tokens_total", "counter", help, known);
        let running = self.running.get() as f64;
        number(out, "sws_requests_running", "gauge", "Texts with a sequence.", running);
        let kept = self.kept.get() as f64;
        let help = "Prefixes that are kept in memory.";
        number(out, "sws_kept_prefixes", "gauge", help, kept);
        let [held, room] = &self.states;
        let help = "Bytes of keys, values and other states of texts, running and kept.";
        number(out, "sws_kv_used_bytes", "gauge", help, held.get() as f64);
        let help = "Bytes that there is room for.";
        number(out, "sws_kv_room_bytes", "gauge", help, room.get() as f64);
        self.disk.write(out);
        self.queue.write("sws_queue_seconds", "Time before a text has a sequence.", out);
        self.first.write("sws_time_to_first_token_seconds", "Time to the first token.", out);
        self.between.write("sws_inter_token_seconds", "Time between two tokens.", out);
    }
}

/// Writes a number in the format of Prometheus.
pub(crate) fn number(out: &mut String, name: &str, kind: &str, help: &str, value: f64) {
    let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn histogram_counts_each_time_in_all_larger_buckets() {
        let histogram = Histogram::default();
        histogram.add(Duration::from_millis(30));
        histogram.add(Duration::from_secs(1000));
        let mut text = String::new();
        histogram.write("t", "Times.", &mut text);
        for line in [
            "t_bucket{le=\"0.02\"} 0",
            "t_bucket{le=\"0.05\"} 1",
            "t_bucket{le=\"600\"} 1",
            "t_bucket{le=\"+Inf\"} 2",
            "t_sum 1000.03",
            "t_count 2",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} in {text}");
        }
    }
}
