//! How tokens are chosen.

use sws_model::text::GenerationOptions;

/// How tokens are chosen. What is not given is what the model's `generation_config.json` says.
#[derive(Debug, clap::Args)]
pub(crate) struct Sampling {
    /// How many tokens at most [default: 256, in a chat as many as there is room for].
    #[arg(long, value_name = "N")]
    pub(crate) max_new_tokens: Option<usize>,
    /// How freely to choose; 0 takes the likeliest token, always.
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    temperature: Option<f32>,
    /// Choose among the N likeliest; 0 for all.
    #[arg(long, value_name = "N")]
    top_k: Option<usize>,
    /// Choose among the likeliest that together have this probability.
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    top_p: Option<f32>,
    /// Leave out what is less likely than this times the likeliest.
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    min_p: Option<f32>,
    /// Divides the logits of tokens in the prompt or the text so far.
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    repetition_penalty: Option<f32>,
    /// Subtracted from the logits of tokens in the text so far.
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    presence_penalty: Option<f32>,
    /// Subtracted for every time a token is in the text so far.
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    frequency_penalty: Option<f32>,
    /// The same seed gives the same text, on every machine, as long as `--json` names the same `sampler`
    /// [default: another each time].
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// End the text before this string; can be given several times.
    #[arg(long, value_name = "TEXT")]
    stop: Vec<String>,
    /// Go on when the model says that the text is over.
    #[arg(long)]
    ignore_eos: bool,
}

impl Sampling {
    pub(crate) fn options(&self) -> GenerationOptions {
        GenerationOptions {
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            repetition_penalty: self.repetition_penalty,
            presence_penalty: self.presence_penalty,
            frequency_penalty: self.frequency_penalty,
            seed: self.seed,
            max_new_tokens: self.max_new_tokens,
            stop: self.stop.clone(),
            ignore_eos: self.ignore_eos,
        }
    }
}
