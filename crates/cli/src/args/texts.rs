//! Arguments of the commands that make texts.

use std::path::PathBuf;

use super::{ModelArgs, SamplingArgs, StructuredArgs};

/// Heading of options about outputs.
const OUTPUT: &str = "Output";

const RUN_EXAMPLES: &str = "\
Examples:
  sws run --prompt \"The wolf\" --seed 7          the bundled model
  sws run MODEL \"def sort(\"
  sws run Qwen/Qwen3-30B-A3B -p \"def sort(\" --ram 12GiB
  sws run MODEL --prompt-file draft.txt -n 400 --json";

const CHAT_EXAMPLES: &str = "\
Examples:
  sws chat                                       the newest model on this machine
  sws chat Qwen/Qwen3-30B-A3B --ram 12GiB --no-think
  sws chat MODEL \"Why is the sky blue?\"
  sws chat MODEL - < question.txt";

/// Continue a text.
///
/// The prompt is taken from PROMPT, --prompt-file, --tokens or standard input; without any of them the text
/// begins with "Once upon a time". The new text goes to standard output, and everything else to
/// standard error. With --prompts, several texts are batched. Only sampling, the structure of
/// the text, --kv, --tolerance and --backend change the text; no other option does.
#[derive(Debug, clap::Args)]
#[command(after_help = RUN_EXAMPLES)]
pub(crate) struct Run {
    /// The text to continue.
    #[arg(long, short, value_name = "TEXT", conflicts_with = "tokens")]
    pub(crate) prompt: Option<String>,
    /// The text to continue, as --prompt.
    #[arg(index = 2, value_name = "PROMPT", help_heading = None, conflicts_with_all = ["prompt", "tokens"])]
    pub(crate) text: Option<String>,
    /// File with the text to continue; `-` for standard input.
    #[arg(long, short = 'f', value_name = "FILE", conflicts_with_all = ["prompt", "text", "tokens"])]
    pub(crate) prompt_file: Option<PathBuf>,
    /// The text to continue, as token ids: 1,2,3.
    #[arg(long, value_name = "IDS", value_delimiter = ',', value_parser = token, hide_short_help = true)]
    pub(crate) tokens: Option<Vec<u32>>,
    /// Continue each line of a file (`-` for standard input), several together. Prints a line of
    /// JSON for each, in the order of the file: `line`, `tokens` (the new ids), `text`, `end`,
    /// `seed`, `sampler`, or `line` and `error`. Each text is the one that --prompt gives.
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with_all = ["prompt", "text", "prompt_file", "tokens", "record", "certify", "json"],
        hide_short_help = true
    )]
    pub(crate) prompts: Option<PathBuf>,
    /// Maximum number of texts at a time, with --prompts. Each expert is read once for all of them.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 4,
        requires = "prompts",
        value_parser = clap::value_parser!(u16).range(1..=1024),
        hide_short_help = true
    )]
    pub(crate) parallel: u16,
    #[command(flatten)]
    pub(crate) sampling: SamplingArgs,
    #[command(flatten)]
    pub(crate) structure: StructuredArgs,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// Draw on the terminal what happens: experts, disk, computing, memory, and the cost of tokens.
    #[arg(long, conflicts_with = "prompts", help_heading = OUTPUT)]
    pub(crate) watch: bool,
    /// Write a page of what happened, for a browser.
    #[arg(long, value_name = "FILE", conflicts_with = "prompts", help_heading = OUTPUT, hide_short_help = true)]
    pub(crate) report: Option<PathBuf>,
    /// Record the chosen experts, as a trace for `sws replay`.
    #[arg(long, value_name = "FILE", help_heading = OUTPUT, hide_short_help = true)]
    pub(crate) record: Option<PathBuf>,
    /// Also record the training data of `sws draft train`: `hidden` and `attended` [tokens, layers,
    /// hidden] f32, the inputs of each layer and of its router.
    #[arg(long, requires = "record", help_heading = OUTPUT, hide_short_help = true)]
    pub(crate) record_hidden: bool,
    /// Write a certificate of the answer, which `sws certify` can recompute.
    #[arg(long, value_name = "FILE", conflicts_with = "tolerance", help_heading = OUTPUT, hide_short_help = true)]
    #[cfg_attr(feature = "forms", arg(conflicts_with_all = ["json_schema", "regex", "grammar"]))]
    pub(crate) certify: Option<PathBuf>,
    /// Print one JSON object instead of the text: `tokens` (the new ids), `text`, `end`, `metrics`.
    #[arg(long, help_heading = OUTPUT)]
    pub(crate) json: bool,
}

impl Run {
    /// True if an option gives the text to continue, or several.
    pub(crate) fn has_prompt(&self) -> bool {
        let in_file = self.prompt_file.is_some() || self.prompts.is_some();
        self.prompt.is_some() || self.tokens.is_some() || in_file
    }

    /// The arguments of `sws run MODEL`.
    pub(crate) fn of(model: ModelArgs, sampling: SamplingArgs) -> Run {
        Run {
            model,
            prompt: None,
            text: None,
            prompt_file: None,
            tokens: None,
            prompts: None,
            parallel: 1,
            sampling,
            structure: StructuredArgs::default(),
            watch: false,
            report: None,
            record: None,
            record_hidden: false,
            certify: None,
            json: false,
        }
    }
}

/// Recompute a certified answer and compare every bit.
///
/// The result does not depend on --ram, --resident, --policy, --reader or --threads. Exits with 0
/// if all bits agree, otherwise with 1 and the first step that differs.
#[derive(Debug, clap::Args)]
pub(crate) struct Certify {
    /// The certificate, written by `sws run --certify`.
    pub(crate) file: PathBuf,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// Print the outcome as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Chat with a model.
///
/// Each line is a message; longer ones stand between """ and """, or have lines that end in a
/// backslash. The arrow keys recall earlier lines; no history is saved. Ctrl-C stops an
/// answer; /help lists the commands. Without a model, the newest one on this machine that was made for
/// conversation answers. Standard output gets the answers; what a model thinks before is shown, dimmed,
/// on a terminal only.
#[derive(Debug, clap::Args)]
#[command(after_help = CHAT_EXAMPLES)]
pub(crate) struct ChatArgs {
    /// Let the model think before it answers, if its template has a switch for that [default: as in
    /// the template].
    #[arg(long, overrides_with = "no_think")]
    pub(crate) think: bool,
    /// Let the model answer at once.
    #[arg(long, overrides_with = "think")]
    pub(crate) no_think: bool,
    /// Go on where the last 200 tokens of an answer are the same tokens again and again.
    #[arg(long, hide_short_help = true)]
    pub(crate) no_loop_guard: bool,
    /// Where the context is full, forget the oldest questions and answers. The model no longer sees
    /// them.
    #[arg(long, hide_short_help = true)]
    pub(crate) shift: bool,
    /// Continue a conversation that /save wrote.
    #[arg(long, value_name = "FILE", hide_short_help = true)]
    pub(crate) load: Option<PathBuf>,
    /// Draw on the terminal what happens during an answer, which is shown afterwards.
    #[arg(long)]
    pub(crate) watch: bool,
    /// Write a page of what happened, for a browser, anew after each answer.
    #[arg(long, value_name = "FILE", hide_short_help = true)]
    pub(crate) report: Option<PathBuf>,
    /// System message, which precedes the conversation.
    #[arg(long, value_name = "TEXT")]
    pub(crate) system: Option<String>,
    #[command(flatten)]
    pub(crate) sampling: SamplingArgs,
    #[command(flatten)]
    pub(crate) structure: StructuredArgs,
    /// Print one JSON object instead of the answer to a question: `tokens`, `text`, `thoughts`, `end`,
    /// `metrics`.
    #[arg(long, requires = "question", hide_short_help = true)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// Answer this question only; `-` for all of standard input.
    #[arg(index = 2, help_heading = None)]
    pub(crate) question: Option<String>,
}

/// Write the logits of a sequence of tokens to a file.
///
/// Writes a safetensors file with `logits` [tokens, vocabulary] f32: row t predicts the token after
/// token t. With --routes also `routes` [layers, tokens, k] u32: the experts chosen by the router
/// of each layer with experts, first layer to last, most probable expert first. A layer that is
/// visited several times for a token comes as often.
#[derive(Debug, clap::Args)]
pub(crate) struct Forward {
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// The token ids: 1,2,3.
    #[arg(long, value_name = "IDS", value_delimiter = ',', value_parser = token, required = true)]
    pub(crate) tokens: Vec<u32>,
    /// Output file, which appears once it is complete.
    #[arg(long, value_name = "FILE")]
    pub(crate) out: PathBuf,
    /// Also write the chosen experts.
    #[arg(long)]
    pub(crate) routes: bool,
    /// Print the outcome as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Parses a token id.
fn token(word: &str) -> Result<u32, String> {
    word.trim().parse().map_err(|_| "token ids are numbers, separated by commas: 1,2,3".to_owned())
}
