//! Estimates of prompts: when they have their first tokens.

use std::ops::Range;

use serde::Serialize;
use sws::PromptComputing;
use sws_engine::Plan;

use crate::commands::machine::Machine;
use crate::commands::rounded::time;
use crate::table::wrapped;

/// Prompts of which the time is shown, in tokens.
const PROMPTS: [usize; 3] = [128, 1000, 8192];

/// The estimate of a prompt, as the first of a run.
#[derive(Debug, Serialize)]
pub(super) struct PromptEstimate {
    tokens: usize,
    read_bytes: u64,
    /// Of reading alone where computing was not measured.
    pub(super) first_token_seconds: f64,
}

/// Estimates of prompts of usual lengths, as far as the context has room for them. Where computing was
/// not measured they take the time of reading, or longer; where no disk was, there are none.
pub(super) fn prompts(
    plan: &Plan,
    machine: Machine,
    computing: Option<&PromptComputing>,
) -> Vec<PromptEstimate> {
    let Some(disk) = machine.disk_bytes_per_second else { return Vec::new() };
    let threads = machine.threads.map_or(1, usize::from);
    let seconds = |part: &Range<usize>| match computing {
        Some(computing) => computing.seconds(&plan.per_token, part),
        None => 0.0,
    };
    let shorter = PROMPTS.into_iter().filter(|&tokens| tokens < plan.context);
    let mut estimates = Vec::new();
    for tokens in shorter.chain([plan.context]).take(PROMPTS.len()) {
        let mut read_bytes = 0;
        for (_, bytes) in plan.prompt.passes(tokens) {
            read_bytes += bytes;
        }
        let first_token_seconds = plan.prompt.seconds(tokens, disk, threads, seconds);
        estimates.push(PromptEstimate { tokens, read_bytes, first_token_seconds });
    }
    estimates
}

/// The estimate of a long prompt: of the second length, or of the only one.
pub(super) fn long(prompts: &[PromptEstimate]) -> Option<&PromptEstimate> {
    prompts.get(1).or(prompts.first())
}

/// When prompts have their first tokens, in a line.
pub(super) fn first_tokens(prompts: &[PromptEstimate], is_computed: bool) -> String {
    if prompts.is_empty() {
        return String::new();
    }
    let mut each = Vec::new();
    for PromptEstimate { tokens, first_token_seconds, .. } in prompts {
        each.push(format!("{} for a prompt of {tokens} tokens", time(*first_token_seconds)));
    }
    let each = each.join(", ");
    let more = if is_computed { "" } else { ", or more, as computing was not measured" };
    wrapped(&format!("time to the first token: {each}{more}\n"))
}
