//! Wall time, as ratios of contenders that take turns: each a process of its own with its own memory, of
//! which one computes while the others wait.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::process::{Child, ChildStdin, ChildStdout};

use anyhow::{Context, Result, anyhow};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sws_benchmarks::paired::{Ratios, median};

use crate::child::{Done, Task};

/// What a contender is asked for in a turn.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Ask {
    /// So many further tokens of its text.
    Generate(usize),
    /// The logits after a prompt, with nothing before it but what the cache has kept.
    Prompt(Vec<u32>),
}

/// What a turn took.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Turn {
    pub(crate) seconds: f64,
    /// Read from the device.
    pub(crate) bytes: u64,
    /// The share of the time in which a read was under way.
    pub(crate) busy: f64,
    /// What was generated.
    pub(crate) tokens: Vec<u32>,
}

/// A process that waits for its turns.
#[derive(Debug)]
pub(crate) struct Contender {
    child: Child,
    asks: ChildStdin,
    told: BufReader<ChildStdout>,
}

impl Contender {
    /// Starts it, and waits until its prompt is through.
    pub(crate) fn new(task: &Task) -> Result<Contender> {
        let mut child = task.start(None)?;
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

    /// Ends it. Its metrics are those of its turns: it has waited between them.
    pub(crate) fn finish<'a>(mut self, turns: impl Iterator<Item = &'a Turn>) -> Result<Done> {
        writeln!(self.asks)?;
        let done: Done = self.hear()?;
        self.child.wait()?;
        let (mut seconds, mut tokens, mut bytes) = (Vec::new(), 0, 0);
        for turn in turns {
            seconds.push(turn.seconds / turn.tokens.len() as f64);
            tokens += turn.tokens.len();
            bytes += turn.bytes;
        }
        let metrics = match tokens {
            0 => Value::Null,
            _ => json!({
                "tokens_per_second": 1.0 / median(seconds),
                "bytes_per_token": { "all": bytes as f64 / tokens as f64 },
            }),
        };
        Ok(Done { metrics, ..done })
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

/// None outlives what asked for it, whatever went wrong.
impl Drop for Contender {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Turns of two, each of which is the first of every other pair.
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

/// What the first took over what the second took.
pub(crate) fn ratios(turns: &[[Turn; 2]]) -> Ratios {
    let seconds = |of: usize| turns.iter().map(|pair| pair[of].seconds).collect::<Vec<_>>();
    Ratios::new(&seconds(0), &seconds(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_first_in_every_other_pair() {
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
