//! What a pass costs in virtual time.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

use super::ReplicasArguments;

/// Times in seconds of a replica, and sizes in bytes of what it fetches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Costs {
    /// Of a pass, whatever its tokens.
    pub pass: f64,
    /// Of each token of a pass.
    pub token: f64,
    /// Of each expert that a layer of a pass uses.
    pub expert: f64,
    /// Of reading an expert that is not in memory, as far as the pass waits for it.
    pub read: f64,
    /// Of fetching an expert from object storage, the first time that a replica reads it.
    #[serde(default)]
    pub fetch: f64,
    /// From the end of an answer until the client's next request has reached its replica.
    #[serde(default)]
    pub between: f64,
    /// Bytes of an expert.
    pub expert_bytes: u64,
    /// Bytes of everything else, fetched before the first pass.
    #[serde(default)]
    pub other_bytes: u64,
    /// Times while no other replica works, for replicas that share a machine.
    #[serde(default)]
    pub alone: Option<Alone>,
}

/// Times of a replica that has its machine to itself: those of [`Costs`] with the same names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(missing_docs, reason = "documented in `Costs`")]
pub struct Alone {
    pub pass: f64,
    pub token: f64,
    pub expert: f64,
    pub read: f64,
}

/// The work of a pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Rows.
    pub tokens: u64,
    /// Experts that its layers used, each counted once per layer.
    pub uses: u64,
    /// Those of them that were not in memory.
    pub misses: u64,
    /// Those of them that the replica had never read.
    pub fetched: u64,
}

impl Costs {
    /// Costs of a model that is read at the speeds of memory, drive and network: an expert is read from
    /// memory each time that it is used, so is everything else in each pass, and no two reads overlap.
    pub fn of(arguments: &ReplicasArguments) -> Result<Costs> {
        if let Some(path) = &arguments.costs {
            let name = path.display();
            let text = std::fs::read_to_string(path)
                .with_context(|| format!("`{name}` cannot be read; name a file with costs"))?;
            let costs: Costs = serde_json::from_str(&text).with_context(|| {
                format!("`{name}` has no costs; benchmarks/replicas.py writes such a file")
            })?;
            costs.check().with_context(|| format!("`{name}`"))?;
            return Ok(costs);
        }
        let ReplicasArguments { expert_bytes, other_bytes, memory, disk, link, token_us, .. } =
            *arguments;
        ensure!(memory > 0 && disk > 0, "--memory and --disk are speeds above 0");
        Ok(Costs {
            pass: seconds(other_bytes, memory),
            token: token_us / 1e6,
            expert: seconds(expert_bytes, memory),
            read: seconds(expert_bytes, disk),
            fetch: seconds(expert_bytes, link),
            between: 0.0,
            expert_bytes,
            other_bytes,
            alone: None,
        })
    }

    fn check(&self) -> Result<()> {
        let &Costs { pass, token, expert, read, fetch, between, .. } = self;
        let all = [pass, token, expert, read, fetch, between];
        let alone = self.times(true);
        let alone = [alone.pass, alone.token, alone.expert, alone.read];
        ensure!(
            all.iter().chain(&alone).all(|seconds| (0.0..1e6).contains(seconds)),
            "times are seconds from 0 on; measure them again"
        );
        for times in [&all[..], &alone] {
            let takes_time = times.iter().any(|&seconds| seconds > 0.0);
            ensure!(takes_time, "a pass takes no time; measure it again");
        }
        Ok(())
    }

    /// Those of a replica that has its machine to itself, or shares it.
    fn times(&self, is_alone: bool) -> Alone {
        let Costs { pass, token, expert, read, .. } = *self;
        self.alone.filter(|_| is_alone).unwrap_or(Alone { pass, token, expert, read })
    }

    /// Time of a pass, while no other replica of its machine works or while some do.
    pub fn time(&self, work: Work, is_alone: bool) -> Duration {
        let Work { tokens, uses, misses, fetched } = work;
        let Alone { pass, token, expert, read } = self.times(is_alone);
        let seconds = pass
            + token * tokens as f64
            + expert * uses as f64
            + read * misses as f64
            + self.fetch * fetched as f64;
        Duration::from_secs_f64(seconds)
    }

    /// Time in which everything but experts is fetched, at the speed of experts.
    pub fn start(&self) -> Duration {
        let per_byte = self.fetch / self.expert_bytes.max(1) as f64;
        Duration::from_secs_f64(per_byte * self.other_bytes as f64)
    }
}

/// Seconds for bytes at a speed; 0 without a speed.
fn seconds(bytes: u64, speed: u64) -> f64 {
    match speed {
        0 => 0.0,
        speed => bytes as f64 / speed as f64,
    }
}
