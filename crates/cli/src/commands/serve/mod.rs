//! `sws serve`.

mod models;

use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::bail;
use sws::{Loader, Model, ModelSet, Needs, PrefixDisk, SetEntry, Threads};
use sws_engine::MemoryUse;
use sws_serve::{Server, ServerConfig, ServerLimits, listening, structured};

use super::{kv, notify};
use crate::input::read_file;
use crate::interrupt::Interrupt;
use crate::terminal::note;
use crate::{args, limits, model, process};
use models::OpenedModel;

/// Maximum size of a request where the budget has no room for the default and for all structured output. Then
/// the budget that is named for structured output, which is smaller, has as much for requests.
const SMALL_BODY: usize = 512 << 10;

pub(crate) fn run(args: &args::Serve) -> anyhow::Result<ExitCode> {
    let threads = limits::threads(args.model.threads)?;
    model::limit_to_budget(&args.model);
    let opened = models::open(args)?;
    if !args.model.advanced.backend.continues_several() {
        bail!("this --backend continues one text at a time, and a server several; choose another");
    }
    let interrupt = Arc::new(Interrupt::of_a_server()?);
    let mut config = config(args, &opened, &interrupt)?;
    let disks = disks(args, &opened, &config.keys)?;
    if args.body.is_none() && !has_room(args, &config.limits, &opened, &threads) {
        config.limits.body = SMALL_BODY;
    }
    let needs = needs_of(args, &config.limits, &opened);
    let mut all: Vec<(OpenedModel, Needs)> = opened.into_iter().zip(needs).collect();
    // Requests are answered from here on, whose memory has limits of its own.
    process::lift();
    let server = Server::start(config)?.with_disks(disks);
    match all.pop() {
        Some(only) if all.is_empty() => serve_one(args, server, only, &threads, &interrupt)?,
        last => {
            all.extend(last);
            serve_several(args, server, all, &threads, &interrupt)?;
        }
    }
    note!("sws: all texts are over");
    Ok(ExitCode::SUCCESS)
}

/// Serves the only model.
fn serve_one(
    args: &args::Serve,
    server: Server,
    (opened, needs): (OpenedModel, Needs),
    threads: &Threads,
    interrupt: &Interrupt,
) -> anyhow::Result<()> {
    let OpenedModel { model, text, names, .. } = opened;
    let address = server.address();
    note!("sws: listening on http://{address}; loading the model");
    let loader = model.with(args.model.options()).needs(needs).text(text).threads(threads);
    let mut running = model::load(loader, interrupt)?;
    let limit = running.limit();
    let ready = || {
        let texts = super::count(args.parallel, "text");
        note!("sws: ready: {limit} positions for each of {texts}");
        announce(&format!("model {}", names.id), address);
    };
    Ok(server.run(&mut running, needs, ready)?)
}

/// Serves several models, of which one is loaded at a time.
fn serve_several(
    args: &args::Serve,
    server: Server,
    all: Vec<(OpenedModel, Needs)>,
    threads: &Threads,
    interrupt: &Interrupt,
) -> anyhow::Result<()> {
    let address = server.address();
    let ids: Vec<String> = all.iter().map(|(opened, _)| opened.names.id.clone()).collect();
    note!("sws: listening on http://{address}; loading the first of {} models", ids.len());
    let mut entries = Vec::with_capacity(all.len());
    for (opened, needs) in all {
        let OpenedModel { model, text, .. } = opened;
        entries.push(SetEntry { model, text, needs });
    }
    let set = ModelSet::plan(entries, &args.model.options(), threads)?;
    let first = model::load(set.loader(0), interrupt)?;
    let ready = || {
        for (id, model) in ids.iter().zip(set.models()) {
            let texts = super::count(args.parallel, "text");
            note!("sws: model {id}: {} positions for each of {texts}", model.plan().context);
        }
        announce(
            "ready: one model is loaded at a time, the others when they are asked for",
            address,
        );
    };
    Ok(server.run_set(&set, first, ready)?)
}

/// Tells the user and the service manager that requests are accepted.
fn announce(about: &str, address: SocketAddr) {
    note!(
        "sws: {about}; for OpenAI's clients at http://{address}/v1, for those of Anthropic and Ollama at http://{address}, a chat for a browser at http://{address}/"
    );
    notify::ready();
}

/// What each model needs beside its weights.
fn needs_of(args: &args::Serve, limits: &ServerLimits, opened: &[OpenedModel]) -> Vec<Needs> {
    let texts = usize::from(args.parallel);
    let vocab = opened.iter().map(|opened| opened.model.spec().vocab).sum();
    let disks = if args.kv_disk.is_some() { opened.len() as u64 } else { 0 };
    let mut needs = Vec::with_capacity(opened.len());
    for opened in opened {
        needs.push(Needs {
            // Without a plan there is nothing to set aside.
            all_logits: args.prompt_logprobs || args.model.resident,
            texts,
            heap: limits.heap() + listening(opened.model.spec()) + disks * PrefixDisk::heap(),
            // Each vocabulary stays in memory while requests have structured output.
            structured: structured(vocab, texts),
            ..Needs::default()
        });
    }
    needs
}

/// True if the budget has room for what each model needs, and for all of its structured output.
fn has_room(
    args: &args::Serve,
    limits: &ServerLimits,
    opened: &[OpenedModel],
    threads: &Threads,
) -> bool {
    if args.model.resident {
        return true;
    }
    let is_only = opened.len() == 1;
    for (opened, needs) in opened.iter().zip(needs_of(args, limits, opened)) {
        let OpenedModel { model, text, .. } = opened;
        let mut loader = model.with(args.model.options()).needs(needs);
        // Of several models each would keep a graphics card from the others.
        if is_only {
            loader = loader.keeping_vram();
        }
        if !has_room_for(needs.structured, loader.text(text.clone()).threads(threads)) {
            return false;
        }
    }
    true
}

/// True if the budget has room for what a loader needs, and for so many bytes of structured output.
fn has_room_for(structured: u64, loader: Loader<'_>) -> bool {
    // What is wrong is said once the server listens.
    let Ok(planning) = loader.planning() else { return true };
    let plan = planning.planner.plan(planning.ram);
    plan.is_ok_and(|plan| plan.ledger.get(MemoryUse::Structured) >= structured)
}

fn config(
    args: &args::Serve,
    opened: &[OpenedModel],
    interrupt: &Arc<Interrupt>,
) -> anyhow::Result<ServerConfig> {
    let stop = Arc::clone(interrupt);
    let quiet = args.quiet;
    let limits = ServerLimits {
        body: args.body.unwrap_or(ServerLimits::default().body),
        new_tokens: args.max_tokens,
        queue: args.queue.into(),
        queue_time: Duration::from_secs(args.queue_timeout.into()),
        switch_after: Duration::from_secs(args.switch_after.into()),
        gap: Duration::from_secs(args.max_gap.into()),
        drain: Duration::from_secs(args.drain.into()),
        kept_responses: args.keep_responses.unwrap_or(0),
        ..ServerLimits::default()
    };
    Ok(ServerConfig {
        address: SocketAddr::new(args.listen, args.port),
        models: opened.iter().map(|opened| opened.names.clone()).collect(),
        keys: keys(args)?,
        hosts: args.allowed_host.clone(),
        origins: args.allowed_origin.clone(),
        open: args.no_auth,
        open_metrics: args.open_metrics,
        limits,
        stop: Arc::new(move || stop.is_requested()),
        log: Arc::new(move |line| {
            if !quiet {
                note!("sws: {line}");
            }
        }),
    })
}

/// Opens the directories for prefixes, if there should be any. Models share the space.
fn disks(
    args: &args::Serve,
    opened: &[OpenedModel],
    keys: &[String],
) -> anyhow::Result<Vec<Option<PrefixDisk>>> {
    let Some(limit) = args.kv_disk else { return Ok(Vec::new()) };
    let each = limit / opened.len().max(1) as u64;
    opened.iter().map(|opened| Ok(Some(disk(args, &opened.model, each, keys)?))).collect()
}

fn disk(
    args: &args::Serve,
    model: &Model,
    limit: u64,
    keys: &[String],
) -> anyhow::Result<PrefixDisk> {
    let Some(dir) = kv::dir(model.dir()) else {
        bail!("there is no place for --kv-disk; set HOME or XDG_CACHE_HOME, or leave it out");
    };
    let identity = match PrefixDisk::identity(model, &args.model.options()) {
        Ok(identity) => identity,
        Err(error) => {
            bail!("the files of the model cannot be looked at: {error}; leave out --kv-disk")
        }
    };
    Ok(PrefixDisk::open(&dir, limit, &identity, keys)?)
}

/// The keys, of which none is empty.
fn keys(args: &args::Serve) -> anyhow::Result<Vec<String>> {
    let mut keys = args.api_key.clone();
    if let Some(path) = &args.api_key_file {
        let text = read_file(path, "name a file with a key on each line")?;
        keys.extend(text.lines().map(|line| line.trim().to_owned()));
        keys.retain(|key| !key.is_empty());
        if keys.is_empty() {
            bail!("`{}` has no keys; write one on each line", path.display());
        }
    }
    if keys.iter().any(|key| key.trim().is_empty()) {
        bail!("an API key is empty; give one, or leave out --api-key and SWS_API_KEY");
    }
    Ok(keys)
}
