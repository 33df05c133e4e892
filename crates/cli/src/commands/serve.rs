//! `sws serve`.

use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{anyhow, bail};
use sws::{Loader, Model, Needs, PrefixDisk};
use sws_engine::MemoryUse;
use sws_serve::{Server, ServerConfig, ServerLimits, listening, structured};

use super::{kv, notify};
use crate::input::read_file;
use crate::interrupt::Interrupt;
use crate::terminal::note;
use crate::{args, limits, model, process};

/// Maximum size of a request where the budget has no room for the default and for all structured output. Then
/// the budget that is named for structured output, which is smaller, has as much for requests.
const SMALL_BODY: usize = 512 << 10;

pub(crate) fn run(args: &args::Serve) -> anyhow::Result<ExitCode> {
    let threads = limits::threads(args.model.threads)?;
    let model = model::open_to_run(&args.model)?;
    if !args.model.advanced.backend.continues_several() {
        bail!("this --backend continues one text at a time, and a server several; choose another");
    }
    // A model without a template continues texts only.
    let text = model.with(args.model.options()).read_text()?;
    let text = text.while_loaded(model.chat_template().ok());
    let interrupt = Arc::new(Interrupt::of_a_server()?);
    let mut config = config(args, &model, &interrupt)?;
    let disk = disk(args, &model, &config.keys)?;
    let stores = disk.is_some();
    let needs = |limits: &ServerLimits| Needs {
        // Without a plan there is nothing to set aside.
        all_logits: args.prompt_logprobs || args.model.resident,
        texts: args.parallel.into(),
        heap: limits.heap() + listening(model.spec()) + if stores { PrefixDisk::heap() } else { 0 },
        structured: structured(model.spec().vocab, args.parallel.into()),
        ..Needs::default()
    };
    let loader =
        |needs, text| model.with(args.model.options()).needs(needs).text(text).threads(&threads);
    let usual = needs(&config.limits);
    if args.body.is_none() && !has_room(args, usual.structured, loader(usual, text.clone())) {
        config.limits.body = SMALL_BODY;
    }
    let needs = needs(&config.limits);
    let name = config.name.clone();
    // Requests are answered from here on, whose memory has limits of its own.
    process::lift();
    let mut server = Server::start(config)?;
    if let Some(disk) = disk {
        server = server.with_disk(disk);
    }
    let address = server.address();
    note!("sws: listening on http://{address}; loading the model");
    let mut running = model::load(loader(needs, text), &interrupt)?;
    let limit = running.limit();
    let ready = || {
        let texts = super::count(args.parallel, "text");
        note!("sws: ready: {limit} positions for each of {texts}");
        note!(
            "sws: model {name}; for OpenAI's clients at http://{address}/v1, for those of Anthropic and Ollama at http://{address}, a chat for a browser at http://{address}/"
        );
        notify::ready();
    };
    server.run(&mut running, needs, ready)?;
    note!("sws: all texts are over");
    Ok(ExitCode::SUCCESS)
}

/// True if the budget has room for what a loader needs, and for so many bytes of structured output.
fn has_room(args: &args::Serve, structured: u64, loader: Loader<'_>) -> bool {
    if args.model.resident {
        return true;
    }
    // What is wrong is said once the server listens.
    let Ok(planning) = loader.planning() else { return true };
    let plan = planning.planner.plan(planning.ram);
    plan.is_ok_and(|plan| plan.ledger.get(MemoryUse::Structured) >= structured)
}

fn config(
    args: &args::Serve,
    model: &Model,
    interrupt: &Arc<Interrupt>,
) -> anyhow::Result<ServerConfig> {
    let stop = Arc::clone(interrupt);
    let quiet = args.quiet;
    // Clients know a model by the id that found it.
    let typed = args.model.model.as_deref().filter(|typed| !typed.exists());
    let typed = typed.filter(|_| model.supplier().is_none());
    let name = typed.map_or_else(|| model.name(), |typed| typed.to_string_lossy().into_owned());
    // Or by its file, whatever the server calls it.
    let aliases = args.alias.iter().cloned().chain(model.gguf_stem().map(str::to_owned)).collect();
    let limits = ServerLimits {
        body: args.body.unwrap_or(ServerLimits::default().body),
        new_tokens: args.max_tokens,
        queue: args.queue.into(),
        queue_time: Duration::from_secs(args.queue_timeout.into()),
        gap: Duration::from_secs(args.max_gap.into()),
        drain: Duration::from_secs(args.drain.into()),
        kept_responses: args.keep_responses.unwrap_or(0),
        ..ServerLimits::default()
    };
    Ok(ServerConfig {
        address: SocketAddr::new(args.listen, args.port),
        name: args.name.clone().unwrap_or(name),
        aliases,
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

/// Opens the directory for prefixes, if there should be one.
fn disk(args: &args::Serve, model: &Model, keys: &[String]) -> anyhow::Result<Option<PrefixDisk>> {
    let Some(limit) = args.kv_disk else { return Ok(None) };
    let dir = kv::dir(model.dir()).ok_or_else(|| {
        anyhow!("there is no place for --kv-disk; set HOME or XDG_CACHE_HOME, or leave it out")
    })?;
    let identity = PrefixDisk::identity(model, &args.model.options()).map_err(|error| {
        anyhow!("the files of the model cannot be looked at: {error}; leave out --kv-disk")
    })?;
    Ok(Some(PrefixDisk::open(&dir, limit, &identity, keys)?))
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
