//! Published models to begin with.

/// A published model that is good to begin with, by memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Suggestion {
    /// Memory of the machine, in GiB.
    pub ram: u64,
    /// Id of the model on the hub.
    pub id: &'static str,
    /// Encoding of shards to ask for; `None` for the default, which is exact.
    pub encoding: Option<&'static str>,
    /// Size on disk in GiB, rounded up.
    pub disk: u64,
    /// Parameters in billions: in total, and active for a token.
    pub parameters: [&'static str; 2],
}

/// Models to begin with, in ascending order of memory. All of them answer questions.
pub const SUGGESTIONS: [Suggestion; 5] = [
    Suggestion {
        ram: 8,
        id: "google/gemma-4-26B-A4B-it",
        encoding: Some("q4"),
        disk: 13,
        parameters: ["25.2", "3.8"],
    },
    Suggestion {
        ram: 16,
        id: "Qwen/Qwen3.6-35B-A3B",
        encoding: Some("q4"),
        disk: 18,
        parameters: ["34.7", "2.9"],
    },
    Suggestion {
        ram: 32,
        id: "Qwen/Qwen3.6-35B-A3B",
        encoding: None,
        disk: 49,
        parameters: ["34.7", "2.9"],
    },
    Suggestion {
        ram: 64,
        id: "openai/gpt-oss-120b",
        encoding: None,
        disk: 60,
        parameters: ["116.8", "5.1"],
    },
    Suggestion {
        ram: 128,
        id: "Qwen/Qwen3.8-Flash-Next",
        encoding: Some("q4"),
        disk: 159,
        parameters: ["176.9", "6.7"],
    },
];

impl Suggestion {
    /// The command that downloads the model.
    pub fn command(&self) -> String {
        let encoding = self.encoding.map_or(String::new(), |encoding| format!(" --as {encoding}"));
        format!("sws pull {}{encoding}", self.id)
    }
}
