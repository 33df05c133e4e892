//! What a text cost: the closing lines, and the account of `-v`.

use std::fmt::Write;

use sws::{Activations, BytesRead, End, Generated, LoadedModel, Pace, RunMetrics};
use sws_engine::{Metrics, Speculation, SpeculativeCounts, TierCounts, TierUsage};
use sws_text::Sampling;

use crate::commands::{count, size};
use crate::table::wrapped_at;
use crate::terminal::note;

/// The closing line, of at most 80 columns: tokens, speed, memory.
pub(crate) fn closing(made: &Generated, metrics: &RunMetrics) -> String {
    let mut text = count(made.tokens.len() as u64, "token");
    if metrics.generation.tokens > 0 {
        let _ = write!(text, ", {}", speed(metrics.generation));
    }
    if let Some(first) = metrics.first_token_seconds {
        let _ = write!(text, ", first after {}", seconds(first));
    }
    let mut parts = vec![text];
    if let Some(bytes) = metrics.peak_rss_bytes {
        parts.push(format!("memory {}", size(bytes)));
    }
    if let Some(cost) = generation(metrics) {
        parts.push(format!("{} waiting", share(cost.stalls.seconds, cost.seconds)));
    }
    if metrics.activations != Activations::F32.name() {
        parts.push(format!("{} activations", metrics.activations));
    }
    format!("[{}]", parts.join("; "))
}

/// The line after it: the seed, where one has an effect, and the reason why the text ended, unless the
/// model ended it. `full` says what to do about a full context. `None` if there is nothing to say.
pub(crate) fn ending(made: &Generated, sampling: &Sampling, full: &str) -> Option<String> {
    let end = match made.end {
        End::StopToken | End::StopString | End::Complete => None,
        End::Repeats => {
            Some("ended, as the text repeats itself; --no-loop-guard goes on".to_owned())
        }
        End::Length => {
            let tokens = made.tokens.len();
            Some(format!("cut off after {tokens} tokens; -n N for more"))
        }
        End::Context => Some(format!("the context is full{full}")),
        End::Cancelled => Some("interrupted".to_owned()),
    };
    let mut parts = Vec::new();
    if let Some(seed) = sampling.drawing_seed() {
        parts.push(format!("seed {seed}"));
    }
    parts.extend(end);
    if made.text.is_empty() && !made.reasoning.is_empty() {
        parts.push("there is reasoning and no answer".to_owned());
    }
    if parts.is_empty() { None } else { Some(format!("[{}]", parts.join("; "))) }
}

/// Where time and bytes went, a line each.
pub(crate) fn account(made: &Generated, metrics: &RunMetrics) -> String {
    let mut rows = vec![("prompt", paced(metrics.prompt))];
    let Some(cost) = generation(metrics) else {
        rows.push(("text", paced(metrics.generation)));
        return table(&rows, metrics, made);
    };
    let time = &cost.time;
    let all = time.compute + time.stall + time.other;
    rows.push((
        "text",
        format!(
            "{}; computing {}, waiting for the disk {}, other {}",
            paced(metrics.generation),
            share(time.compute, all),
            share(time.stall, all),
            share(time.other, all),
        ),
    ));
    if metrics.ram_bytes.is_some() {
        rows.push(("weights", weights(cost)));
        if let Some(text) = drives(cost) {
            rows.push(("drives", text));
        }
        if let Some(counts) = &cost.vram {
            rows.push(("vram", tier(counts)));
        }
        if let Some(text) = prefetch(&cost.speculation) {
            rows.push(("prefetch", text));
        }
    }
    if let Some(disk) = metrics.disk {
        rows.push(("disk", read(disk)));
    }
    if let Some(counts) = cost.proposals {
        rows.push(("proposals", draft_tokens(&counts)));
    }
    table(&rows, metrics, made)
}

/// Cost of the tokens after the prompt, if there are any.
fn generation(metrics: &RunMetrics) -> Option<&Metrics> {
    let cost = &metrics.cost.as_ref()?.generation;
    if cost.tokens > 0 && cost.seconds > 0.0 { Some(cost) } else { None }
}

/// Reads of the tokens after the prompt.
fn weights(cost: &Metrics) -> String {
    // There is no hit rate if experts stream like everything else, without a cache.
    let hits = match cost.experts.hit_rate {
        Some(rate) => format!("{} of the experts were in memory; ", share(rate, 1.0)),
        None => String::new(),
    };
    let read: f64 = cost.bytes_per_token.values().sum();
    let rate = match cost.disk.bytes {
        0 => String::new(),
        _ => format!(", at {:.1} GB/s", cost.disk.gb_per_second_reading),
    };
    format!("{hits}{} read per token{rate}", size(read as u64))
}

/// Bytes of each of several drives.
fn drives(cost: &Metrics) -> Option<String> {
    let mut drives = Vec::new();
    for (number, drive) in cost.drives.iter().enumerate() {
        let name =
            if number == 0 { "the model's own".to_owned() } else { format!("copy {number}") };
        let left_out = if drive.left_out { ", left out" } else { "" };
        drives.push(format!("{name} {}{left_out}", size(drive.bytes)));
    }
    if drives.is_empty() { None } else { Some(drives.join("; ")) }
}

/// Experts on a graphics card.
fn tier(counts: &TierCounts) -> String {
    let TierCounts { usage: TierUsage { held, slots, bytes, limit, failure }, is_on, hits, copies } =
        counts;
    let state = match (failure, is_on) {
        (Some(failure), _) => format!("; {failure}"),
        (None, true) => String::new(),
        (None, false) => "; tried or idle, as the CPU is not slower".to_owned(),
    };
    format!(
        "{held} of {slots} experts, {} of {}; {hits} computed there, {copies} copied{state}",
        size(*bytes),
        size(*limit)
    )
}

/// The reason why a graphics card was left alone during the run.
pub(crate) fn card_failure(metrics: &RunMetrics) -> Option<&str> {
    let cost = metrics.cost.as_ref()?;
    for part in [&cost.generation, &cost.prompt] {
        if let Some(counts) = &part.vram
            && let Some(failure) = counts.usage.failure.as_deref()
        {
            return Some(failure);
        }
    }
    None
}

/// Says that a graphics card was left alone during the passes of a model.
pub(crate) fn note_card_failure(running: &LoadedModel) {
    let counts = running.gauge().and_then(|gauge| gauge.read().tier);
    if let Some(why) = counts.and_then(|counts| counts.usage.failure) {
        note!("sws: experts stay on the CPU: {why}");
    }
}

/// Bytes read for the text, and in all.
fn read(BytesRead { text_bytes, all_bytes }: BytesRead) -> String {
    format!(
        "{} read for this text, {} with loading and earlier texts",
        size(text_bytes),
        size(all_bytes)
    )
}

/// Balance of reads ahead of the router.
fn prefetch(speculation: &Speculation) -> Option<String> {
    let Speculation { useful, wasted, saved_ns, cost_ns, windows_on, windows_off, .. } =
        speculation;
    if useful + wasted == 0 {
        return None;
    }
    let on = match windows_on + windows_off {
        0 => String::new(),
        all => format!("; on in {windows_on} of {}", count(all, "window")),
    };
    Some(format!(
        "{useful} reads right, {wasted} wrong; saved {:.1} ms, cost {:.1} ms{on}",
        saved_ns / 1e6,
        cost_ns / 1e6,
    ))
}

/// Draft tokens, and how many were right.
fn draft_tokens(counts: &SpeculativeCounts) -> String {
    let SpeculativeCounts { passes, proposed, accepted, imitated } = *counts;
    let passes = if passes == 1 { "1 pass".to_owned() } else { format!("{passes} passes") };
    let verified = format!("{accepted} of {proposed} right, in {passes}");
    match imitated {
        0 => verified,
        _ => format!("{verified}; {} on stand-ins", count(imitated, "token")),
    }
}

fn table(rows: &[(&str, String)], metrics: &RunMetrics, made: &Generated) -> String {
    let mut text = String::new();
    for (name, row) in rows {
        text += &wrapped_at(11, &format!("{name:<10} {row}\n"));
    }
    if !made.reasoning.is_empty() {
        let _ =
            writeln!(text, "{:<10} {} bytes before the answer", "reasoning", made.reasoning.len());
    }
    let allowed = match metrics.ram_bytes {
        Some(ram) => format!(" of {}", size(ram)),
        None => String::new(),
    };
    let peak = metrics.peak_rss_bytes.map_or("unknown".to_owned(), size);
    let memory = format!(
        "{:<10} {peak}{allowed} at most; loaded in {}, of which the tokenizer {}\n",
        "memory",
        seconds(metrics.load_seconds),
        seconds(metrics.tokenizer_seconds)
    );
    text + &wrapped_at(11, &memory)
}

/// Tokens, their time and speed: `5 tokens in 0.01 s (336 tok/s)`.
fn paced(pace: Pace) -> String {
    let text = count(pace.tokens as u64, "token");
    match pace.tokens {
        0 => text,
        _ => format!("{text} in {} ({})", seconds(pace.seconds), speed(pace)),
    }
}

/// Speed in tokens per second, or in seconds per token if that is the larger number.
pub(crate) fn speed(pace: Pace) -> String {
    rate(pace.tokens_per_second)
}

/// Like [`speed`], of a number of tokens per second.
pub(crate) fn rate(tokens: f64) -> String {
    match tokens {
        rate if rate >= 100.0 => format!("{rate:.0} tok/s"),
        rate if rate >= 1.0 => format!("{rate:.1} tok/s"),
        rate if rate > 0.0 => format!("{:.1} s/token", 1.0 / rate),
        _ => "0 tok/s".to_owned(),
    }
}

fn seconds(seconds: f64) -> String {
    match seconds {
        s if s < 10.0 => format!("{s:.2} s"),
        s if s < 60.0 => format!("{s:.0} s"),
        s => format!("{}:{:02} min", s as u64 / 60, s as u64 % 60),
    }
}

fn share(part: f64, whole: f64) -> String {
    format!("{:.0} %", 100.0 * part / whole.max(1e-9))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_speeds_are_seconds_per_token() {
        let cases = [
            (706.6, "707 tok/s"),
            (12.34, "12.3 tok/s"),
            (1.0, "1.0 tok/s"),
            (0.14, "7.1 s/token"),
            (0.0, "0 tok/s"),
        ];
        for (tokens, expected) in cases {
            assert_eq!(rate(tokens), expected);
        }
    }

    #[test]
    fn times_have_the_digits_that_matter() {
        for (time, expected) in
            [(0.016, "0.02 s"), (9.5, "9.50 s"), (42.4, "42 s"), (125.0, "2:05 min")]
        {
            assert_eq!(seconds(time), expected);
        }
    }
}
