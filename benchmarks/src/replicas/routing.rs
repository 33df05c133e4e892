//! The choice of a replica for a request.

use clap::ValueEnum;
use serde::Serialize;
use sws_text::SplitMix64;

/// A way to choose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Routing {
    /// The same replica for the same topic, as long as it has room: that of `deploy/ray`
    Affinity,
    /// Any, whatever the others have to do
    Random,
    /// One with the fewest requests
    LeastLoaded,
}

/// Chooses replicas, and knows how many requests each has.
#[derive(Clone, Debug)]
pub struct Router {
    routing: Routing,
    /// Requests of each replica, running and waiting.
    loads: Vec<usize>,
    /// Requests of a replica beyond which affinity takes another.
    most: usize,
    random: SplitMix64,
}

impl Router {
    /// A router of replicas without requests.
    pub fn new(routing: Routing, replicas: usize, most: usize, seed: u64) -> Router {
        Router { routing, loads: vec![0; replicas], most, random: SplitMix64::new(seed) }
    }

    /// Chooses the replica of a request, and counts it there.
    pub fn choose(&mut self, topic: usize) -> usize {
        let all = 0..self.loads.len();
        let chosen = match self.routing {
            Routing::Random => self.any(all.end),
            Routing::LeastLoaded => self.least(),
            Routing::Affinity => {
                let has_room = all.filter(|&replica| self.loads[replica] < self.most);
                let first = has_room.min_by_key(|&replica| rank(topic, replica));
                first.unwrap_or_else(|| self.least())
            }
        };
        self.loads[chosen] += 1;
        chosen
    }

    /// Counts the end of a request.
    pub fn ended(&mut self, replica: usize) {
        self.loads[replica] -= 1;
    }

    /// Any of those with the fewest requests.
    fn least(&mut self) -> usize {
        let least = self.loads.iter().copied().min().unwrap_or(0);
        let count = self.loads.iter().filter(|&&load| load == least).count();
        let chosen = self.any(count);
        let mut with = (0..self.loads.len()).filter(|&replica| self.loads[replica] == least);
        with.nth(chosen).unwrap_or(0)
    }

    fn any(&mut self, of: usize) -> usize {
        (self.random.next_unit() * of as f64) as usize
    }
}

/// The replica with the lowest rank has the topic. One that comes or goes moves its own topics only.
fn rank(topic: usize, replica: usize) -> u64 {
    let mut hash = SplitMix64::new(topic as u64);
    let of_topic = hash.next_u64();
    SplitMix64::new(of_topic ^ (replica as u64).wrapping_mul(0xd6e8_feb8_6659_fd93)).next_u64()
}
