//! Wall time, as ratios of contenders that take turns. Each is a process with its own memory, and
//! one computes while the other waits.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::process::{Child, ChildStdin, ChildStdout};

use anyhow::{Context, Result, anyhow};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use sws_benchmarks::paired::{Ratios, median};
use sws_benchmarks::resident::tokenizer;

use sws_cache::policy::PolicyKind;
use sws_testing::{root, sampled, tales};

use crate::setting::Setting;
use crate::task::{Ask, Done, Drafting, Ram, Task, Turn, Work, finished};

/// Texts, and turns of each. Together enough to resolve 1 to 2 %: the median of 32 ratios lies
/// between the 10th smallest and the 10th largest.
const TEXTS: u64 = 4;
const TURNS: usize = 8;
/// Tokens of a turn.
pub(crate) const TURN: Ask = Ask::Generate(16);

/// A process that waits for its turns.
#[derive(Debug)]
pub(crate) struct Contender {
    child: Child,
    asks: ChildStdin,
    told: BufReader<ChildStdout>,
}

impl Contender {
    /// Starts the process, and waits until its prompt is processed.
    pub(crate) fn new(task: &Task) -> Result<Contender> {
        let mut child = sws_testing::child::start("child", None)?;
        let mut asks = child.stdin.take().context("a child without an input")?;
        let told = BufReader::new(child.stdout.take().context("a child without an output")?);
        writeln!(asks, "{}", serde_json::to_string(task)?)?;
        let mut contender = Contender { child, asks, told };
        contender.hear::<()>()?;
        Ok(contender)
    }

    pub(crate) fn turn(&mut self, ask: &Ask) -> Result<Turn> {
        writeln!(self.asks, "{}", serde_json::to_string(ask)?)?;
        self.hear()
    }

    /// Ends the process. Its metrics are those of its turns, as it has waited between them.
    pub(crate) fn finish<'a>(mut self, turns: impl Iterator<Item = &'a Turn>) -> Result<Done> {
        writeln!(self.asks)?;
        let done: Done = self.hear()?;
        self.child.wait()?;
        Ok(Done { metrics: metrics(turns), ..done })
    }

    fn hear<T: DeserializeOwned>(&mut self) -> Result<T> {
        let mut line = String::new();
        if self.told.read_line(&mut line)? == 0 {
            let mut said = String::new();
            if let Some(mut stderr) = self.child.stderr.take() {
                stderr.read_to_string(&mut said)?;
            }
            return Err(anyhow!("{} ({})", said.trim(), self.child.wait()?));
        }
        Ok(serde_json::from_str(&line)?)
    }
}

/// The process never outlives its contender, even after an error.
impl Drop for Contender {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A task that continues a text after a prompt that fills the cache.
pub(crate) fn task(setting: &Setting, form: &str, ram: Ram, policy: PolicyKind) -> Result<Task> {
    let prompt = std::fs::read_to_string(root().join("benchmarks/prompt.txt"))?;
    let prompt = tokenizer(&tales())?.encode(&prompt, true)?;
    Ok(Task {
        model: setting.model(form)?,
        ram,
        policy: policy.to_string(),
        reader: "direct".to_owned(),
        context: 512,
        work: Work::Turns { prompt, sampling: sampled() },
        draft: Drafting::No,
        only_plan: false,
    })
}

/// The budget with slots for this share of the experts, without room for a draft.
pub(crate) fn budget(setting: &Setting, form: &str, share: f64) -> Result<Ram> {
    let task = task(setting, form, Ram::Share(share), PolicyKind::default())?;
    Ok(Ram::Bytes(finished(task.planned().run(None))?.budget))
}

/// Turns of two contenders that continue several texts, and their results at the end of the last.
///
/// For each text both processes are started anew, in alternating order: the speed of a process also
/// depends on the placement of its memory. Paired with itself, a contender took 0.988 to 1.009 of
/// the time in one start.
pub(crate) fn duels(mut tasks: [Task; 2]) -> Result<(Vec<[Turn; 2]>, [Done; 2])> {
    let mut turns = Vec::new();
    let mut ended = Default::default();
    for text in 0..TEXTS {
        for task in &mut tasks {
            if let Work::Turns { sampling, .. } = &mut task.work {
                sampling.seed = sampled().seed + text;
            }
        }
        let (more, done) = started(&tasks, &[TURN; TURNS], text % 2 == 1)?;
        turns.extend(more);
        ended = done;
    }
    let [first, second] = ended;
    let all = |of: usize| metrics(turns.iter().map(|pair| &pair[of]));
    let ended = [Done { metrics: all(0), ..first }, Done { metrics: all(1), ..second }];
    Ok((turns, ended))
}

/// Turns of two contenders on the same requests, and their results at the end.
pub(crate) fn duel(tasks: &[Task; 2], asks: &[Ask]) -> Result<(Vec<[Turn; 2]>, [Done; 2])> {
    started(tasks, asks, false)
}

/// As [`duel`], optionally with the second contender started first.
fn started(
    [first, second]: &[Task; 2],
    asks: &[Ask],
    second_first: bool,
) -> Result<(Vec<[Turn; 2]>, [Done; 2])> {
    let early = second_first.then(|| Contender::new(second)).transpose()?;
    let mut first = Contender::new(first)?;
    let mut second = early.map_or_else(|| Contender::new(second), Ok)?;
    let mut next = [asks.iter(), asks.iter()];
    let [ours, theirs] = &mut next;
    let turns = turns(
        asks.len(),
        &mut || first.turn(ours.next().context("a turn without a question")?),
        &mut || second.turn(theirs.next().context("a turn without a question")?),
    )?;
    let first = first.finish(turns.iter().map(|pair| &pair[0]))?;
    let second = second.finish(turns.iter().map(|pair| &pair[1]))?;
    Ok((turns, [first, second]))
}

/// Metrics over all turns.
fn metrics<'a>(turns: impl Iterator<Item = &'a Turn>) -> Value {
    let mut seconds = Vec::new();
    let mut tokens = 0;
    let mut bytes = 0;
    for turn in turns {
        seconds.push(turn.seconds / turn.tokens.len() as f64);
        tokens += turn.tokens.len();
        bytes += turn.bytes;
    }
    match tokens {
        0 => Value::Null,
        _ => json!({
            "tokens_per_second": 1.0 / median(seconds),
            "bytes_per_token": { "all": bytes as f64 / tokens as f64 },
        }),
    }
}

/// Turns of two contenders, where each goes first in every other pair.
pub(crate) fn turns(
    pairs: usize,
    first: &mut dyn FnMut() -> Result<Turn>,
    second: &mut dyn FnMut() -> Result<Turn>,
) -> Result<Vec<[Turn; 2]>> {
    let mut turns = Vec::new();
    for pair in 0..pairs {
        turns.push(if pair % 2 == 0 {
            let turn = first()?;
            [turn, second()?]
        } else {
            let turn = second()?;
            [first()?, turn]
        });
    }
    Ok(turns)
}

/// Ratios of the first contender's time to the second's.
pub(crate) fn ratios(turns: &[[Turn; 2]]) -> Ratios {
    ratios_of(turns, |turn| turn.seconds)
}

/// Ratios of another figure of the turns.
pub(crate) fn ratios_of(turns: &[[Turn; 2]], what: impl Fn(&Turn) -> f64) -> Ratios {
    let mut first = Vec::with_capacity(turns.len());
    let mut second = Vec::with_capacity(turns.len());
    for [a, b] in turns {
        first.push(what(a));
        second.push(what(b));
    }
    Ratios::new(&first, &second)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_contender_is_first_in_every_other_pair() {
        let order = std::cell::RefCell::new(String::new());
        let turn = |name: char, seconds| {
            order.borrow_mut().push(name);
            Ok(Turn { seconds, ..Turn::default() })
        };
        let turns = turns(3, &mut || turn('a', 3.0), &mut || turn('b', 2.0)).unwrap();
        assert_eq!(*order.borrow(), "abbaab");
        assert_eq!(ratios(&turns).median(), 1.5);
    }
}
