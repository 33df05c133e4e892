//! Measures how several texts share a model: one after the other, in shared passes, or as the server
//! decides.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use sws::{
    Batch, BatchRequest, Cancel, Event, LoadedModel, Model, Needs, Options, RamBudget, Streaming,
};
use sws_format::Clock;
use sws_text::{GenerationOptions, Position};

const BEGINNINGS: &str = include_str!("../../shards/tales-moe-training/beginnings.txt");
const MIB: u64 = 1 << 20;
/// Positions for a beginning, and for a turn by which a text is ahead of others.
const MARGIN: usize = 256;

/// Options of `sws-bench clients`.
#[derive(clap::Args, Clone, Debug)]
pub struct ClientsArguments {
    /// Shards of a model with the tokenizer of tales-moe, such as an inflated one
    model: PathBuf,
    /// Shares of the experts in memory
    #[arg(long, value_name = "PERCENT", value_delimiter = ',', default_value = "25,50,100", value_parser = clap::value_parser!(u32).range(1..=100))]
    budgets: Vec<u32>,
    /// Numbers of clients
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1,2,4,8", value_parser = clap::value_parser!(u16).range(1..=40))]
    clients: Vec<u16>,
    /// Tokens of each client that are measured
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u32).range(2..=1500))]
    tokens: u32,
    /// Tokens of each client before those
    #[arg(long, default_value_t = 192, value_parser = clap::value_parser!(u32).range(1..=1500))]
    warm_up: u32,
    /// Seconds that a client may wait for the turns of others
    #[arg(long, default_value_t = 10)]
    max_gap: u64,
    /// File for the results
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// A way to share a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Way {
    Queue,
    Together,
    Decided,
}

/// What clients saw.
#[derive(Clone, Debug, Serialize)]
struct Outcome {
    /// Share of the experts in memory, in percent.
    share: u32,
    clients: u16,
    way: Way,
    tokens_per_second: f64,
    bytes_per_token: f64,
    /// Seconds until a client's first token: the median and the longest.
    first: [f64; 2],
    /// Seconds between two tokens of a client: the median and the longest.
    between: [f64; 2],
}

/// Measures and prints a table.
pub fn run(arguments: &ClientsArguments) -> Result<()> {
    let model = Model::open(&arguments.model)?;
    let most = arguments.clients.iter().copied().max().context("no clients")?;
    let mut outcomes = Vec::new();
    for &share in &arguments.budgets {
        let mut loaded = load(&model, share, usize::from(most), arguments)?;
        for &clients in &arguments.clients {
            for way in [Way::Queue, Way::Together, Way::Decided] {
                if clients == 1 && way != Way::Queue {
                    continue;
                }
                let outcome = measure(&mut loaded, share, clients, way, arguments)?;
                eprintln!("{outcome:?}");
                outcomes.push(outcome);
                if let Some(path) = &arguments.json {
                    write(path, &outcomes)?;
                }
            }
        }
    }
    print!("{}", table(&outcomes));
    Ok(())
}

/// Loads the model with a share of its experts in memory and room for all texts.
fn load(
    model: &Model,
    share: u32,
    texts: usize,
    arguments: &ClientsArguments,
) -> Result<LoadedModel> {
    let context = (arguments.warm_up + arguments.tokens) as usize + MARGIN;
    let loader = |ram| {
        let streaming = Streaming { warm_start: false, ..Streaming::default() };
        let options = Options { ram, context: Some(context), streaming, ..Options::default() };
        model.with(options).needs(Needs { texts, ..Needs::default() })
    };
    let planner = loader(RamBudget::Auto).planning()?.planner;
    let most = planner.smallest() + 2 * planner.weights();
    let slots = planner.plan(most)?.most_experts();
    let enough = (slots as f64 * f64::from(share) / 100.0).round() as usize;
    let least = planner.smallest_with(most, MIB, |plan| plan.most_experts() >= enough)?;
    // Margin for a process that has grown since.
    Ok(loader(RamBudget::Bytes(least + 2 * MIB)).load()?)
}

/// Tokens and times of the clients.
struct Seen {
    clock: Clock,
    asked: Vec<Duration>,
    heard: Vec<Option<Duration>>,
    tokens: Vec<u32>,
    first: Vec<f64>,
    between: Vec<f64>,
    failed: Option<sws::Error>,
}

impl Seen {
    fn happened(&mut self, client: usize, event: Event, measured: bool) {
        match event {
            Event::Piece(piece, _) if piece.token.is_some() => {
                let now = self.clock.now();
                match self.heard[client].replace(now) {
                    None => self.first.push((now - self.asked[client]).as_secs_f64()),
                    Some(heard) if measured => self.between.push((now - heard).as_secs_f64()),
                    Some(_) => {}
                }
                self.tokens[client] += 1;
            }
            Event::Ended(made) => self.failed = made.err(),
            _ => {}
        }
    }

    fn all(&self) -> u32 {
        self.tokens.iter().sum()
    }
}

fn measure(
    loaded: &mut LoadedModel,
    share: u32,
    clients: u16,
    way: Way,
    arguments: &ClientsArguments,
) -> Result<Outcome> {
    let gauge = loaded.gauge().context("the backend does not measure")?;
    let count = usize::from(clients);
    let cancels: Vec<Cancel> = (0..count).map(|_| Cancel::new()).collect();
    let mut texts = Vec::new();
    for (client, cancel) in cancels.iter().enumerate() {
        texts.push(Some(text(loaded, client, cancel, arguments)?));
    }
    let clock = Clock::real();
    let started = clock.now();
    let mut seen = Seen {
        clock: clock.clone(),
        asked: vec![started; count],
        heard: vec![None; count],
        tokens: vec![0; count],
        first: Vec::new(),
        between: Vec::new(),
        failed: None,
    };
    let mut batch = loaded.batch()?;
    if way == Way::Decided {
        batch = batch.with_turns(Duration::from_secs(arguments.max_gap));
    }
    // One after the other, the first client is the warm-up of the others too.
    let (each, warm) = match way {
        Way::Queue => (arguments.tokens + arguments.warm_up / clients as u32, arguments.warm_up),
        _ => (u32::MAX, arguments.warm_up * u32::from(clients)),
    };
    let total = warm + arguments.tokens * u32::from(clients);
    let mut began = None;
    while seen.all() < total {
        for (client, text) in texts.iter_mut().enumerate() {
            let free = way != Way::Queue || batch.is_empty();
            if let Some(text) = text.take_if(|_| free) {
                batch.add(client, text)?;
            }
        }
        ensure!(!batch.is_empty(), "the texts ended after {} of {total} tokens", seen.all());
        batch.step(&mut |client, event| seen.happened(client, event, began.is_some()));
        for (client, cancel) in cancels.iter().enumerate() {
            if seen.tokens[client] >= each {
                cancel.cancel();
            }
        }
        if let Some(error) = seen.failed.take() {
            return Err(error.into());
        }
        if began.is_none() && seen.all() >= warm {
            began = Some((seen.clock.now(), gauge.read(), seen.all()));
        }
    }
    let (from, before, already) = began.context("nothing was measured")?;
    let tokens = f64::from(seen.all() - already);
    let seconds = (clock.now() - from).as_secs_f64();
    let now = gauge.read();
    drop::<Batch<'_>>(batch);
    Ok(Outcome {
        share,
        clients,
        way,
        tokens_per_second: tokens / seconds,
        bytes_per_token: (now.device_bytes - before.device_bytes) as f64 / tokens,
        first: middle_and_most(seen.first),
        between: middle_and_most(seen.between),
    })
}

fn text(
    loaded: &LoadedModel,
    client: usize,
    cancel: &Cancel,
    arguments: &ClientsArguments,
) -> Result<BatchRequest> {
    let beginning = BEGINNINGS.lines().nth(client).context("there are 40 beginnings")?;
    let tokenizer = loaded.text().tokenizer().context("the model has no tokenizer")?;
    let options = GenerationOptions {
        temperature: Some(1.0),
        top_k: Some(40),
        top_p: Some(0.95),
        seed: Some(7 + client as u64),
        max_new_tokens: Some((arguments.warm_up + arguments.tokens) as usize * 2),
        ignore_eos: true,
        ..GenerationOptions::default()
    };
    Ok(BatchRequest {
        tokens: tokenizer.encode(beginning, true)?,
        generation: loaded.model().generation(&options)?,
        position: Position::Middle,
        bias: Vec::new(),
        constraint: None,
        ranks: None,
        prompt_ranks: false,
        pooling: None,
        witness: None,
        short_lived: false,
        owner: client as u64,
        cancel: cancel.clone(),
    })
}

fn middle_and_most(mut times: Vec<f64>) -> [f64; 2] {
    times.sort_by(f64::total_cmp);
    [times.get(times.len() / 2), times.last()].map(|time| time.copied().unwrap_or(0.0))
}

fn write(path: &Path, outcomes: &[Outcome]) -> Result<()> {
    let lines: Result<Vec<String>, _> = outcomes.iter().map(serde_json::to_string).collect();
    let json = format!("[\n {}\n]\n", lines?.join(",\n "));
    std::fs::write(path, json).with_context(|| format!("writing `{}`", path.display()))
}

fn table(outcomes: &[Outcome]) -> String {
    let mut table = String::from(
        "| cached | clients | way | tok/s of all | of one client's | MB a token | first token s, longest | between tokens ms, longest |\n\
         |---:|---:|---|---:|---:|---:|---:|---:|\n",
    );
    for outcome in outcomes {
        let Outcome { share, clients, way, tokens_per_second, bytes_per_token, first, between } =
            outcome;
        let one = outcomes.iter().find(|one| one.share == *share && one.clients == 1);
        let ratio = one.map_or(String::new(), |one| {
            format!("{:.2}", tokens_per_second / one.tokens_per_second)
        });
        let way = match way {
            Way::Queue => "one after the other",
            Way::Together => "shared passes",
            Way::Decided => "as decided",
        };
        table += &format!(
            "| {share} % | {clients} | {way} | {tokens_per_second:.1} | {ratio} | {:.2} | {:.2}, {:.2} | {:.0}, {:.0} |\n",
            bytes_per_token / 1e6,
            first[0],
            first[1],
            1e3 * between[0],
            1e3 * between[1],
        );
    }
    table
}
