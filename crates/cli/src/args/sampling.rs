//! Arguments for sampling.

use anyhow::bail;
use clap::builder::NonEmptyStringValueParser;
use sws::Model;
use sws_text::{DryOptions, Generation, GenerationError, GenerationOptions};

use crate::terminal::note;

/// Arguments for sampling. The defaults come from the model.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Sampling")]
pub(crate) struct SamplingArgs {
    /// Maximum number of new tokens [default: 256; in a chat, as many as the context has room for].
    #[arg(long, short = 'n', aliases = ["n-predict", "predict"], value_name = "N")]
    pub(crate) max_new_tokens: Option<usize>,
    /// Sampling temperature; 0 always takes the most probable token [default: the model's, from its
    /// files or as its publisher recommends for chats; else 0.7 in a chat and 0 elsewhere].
    #[arg(long, alias = "temp", value_name = "X")]
    temperature: Option<f32>,
    /// Sample from the N most probable tokens; 0 for all.
    #[arg(long, value_name = "N", hide_short_help = true)]
    top_k: Option<usize>,
    /// Sample from the most probable tokens that together have this probability.
    #[arg(long, value_name = "X", hide_short_help = true)]
    top_p: Option<f32>,
    /// Exclude tokens less probable than this share of the most probable one.
    #[arg(long, value_name = "X", hide_short_help = true)]
    min_p: Option<f32>,
    /// Penalty that divides the logits of tokens in the prompt or the text so far.
    #[arg(long, alias = "repeat-penalty", value_name = "X", hide_short_help = true)]
    repetition_penalty: Option<f32>,
    /// Penalty subtracted from the logits of tokens in the text so far.
    #[arg(long, value_name = "X", hide_short_help = true)]
    presence_penalty: Option<f32>,
    /// Penalty subtracted for each occurrence of a token in the text so far.
    #[arg(long, value_name = "X", hide_short_help = true)]
    frequency_penalty: Option<f32>,
    /// DRY: penalty for tokens that would continue a repetition; 0 for none.
    #[arg(long, value_name = "X", hide_short_help = true)]
    dry_multiplier: Option<f32>,
    /// DRY: growth of the penalty with each repeated token [default: 1.75].
    #[arg(long, value_name = "X", hide_short_help = true)]
    dry_base: Option<f32>,
    /// DRY: number of repeated tokens from which on there is a penalty [default: 2].
    #[arg(long, value_name = "N", hide_short_help = true)]
    dry_allowed_length: Option<usize>,
    /// DRY: number of last tokens to search for repetitions [default: all].
    #[arg(long, value_name = "N", hide_short_help = true)]
    dry_penalty_last_n: Option<usize>,
    /// DRY: text over which no repetition reaches; can be given more than once, `none` for no text
    /// [default: line break, `:`, `"` and `*`].
    #[arg(
        long = "dry-sequence-breakers",
        alias = "dry-sequence-breaker",
        value_name = "TEXT",
        hide_short_help = true,
        value_parser = NonEmptyStringValueParser::new()
    )]
    dry_sequence_breakers: Vec<String>,
    /// Random seed. The same seed gives the same text on every machine, as long as `--json` shows
    /// the same `sampler` [default: a new seed each time].
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// End the text before this string; can be given more than once.
    #[arg(
        long,
        value_name = "TEXT",
        hide_short_help = true,
        value_parser = NonEmptyStringValueParser::new()
    )]
    stop: Vec<String>,
    /// Continue after the model's end-of-text token.
    #[arg(long, hide_short_help = true)]
    ignore_eos: bool,
}

impl SamplingArgs {
    /// Settings of a continued text. Errors name the options as they are typed.
    pub(crate) fn generation(&self, model: &Model) -> anyhow::Result<Generation> {
        resolved(model, &self.options())
    }

    /// The same, of answers in a conversation, with reasoning or without.
    pub(crate) fn of_conversation(
        &self,
        model: &Model,
        thinks: bool,
    ) -> anyhow::Result<Generation> {
        let options = GenerationOptions { conversation: true, thinks, ..self.options() };
        resolved(model, &options)
    }

    fn options(&self) -> GenerationOptions {
        GenerationOptions {
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            repetition_penalty: self.repetition_penalty,
            presence_penalty: self.presence_penalty,
            frequency_penalty: self.frequency_penalty,
            dry: self.dry(),
            seed: self.seed,
            max_new_tokens: self.max_new_tokens,
            stop: self.stop.clone(),
            ignore_eos: self.ignore_eos,
            conversation: false,
            thinks: false,
        }
    }
}

impl SamplingArgs {
    /// True if repetitions are penalised.
    pub(crate) fn has_dry(&self) -> bool {
        self.dry_multiplier.unwrap_or(0.0) != 0.0
    }

    fn dry(&self) -> DryOptions {
        let breakers = match &self.dry_sequence_breakers[..] {
            [] => None,
            [none] if none == "none" => Some(Vec::new()),
            breakers => Some(breakers.to_vec()),
        };
        DryOptions {
            multiplier: self.dry_multiplier,
            base: self.dry_base,
            allowed_length: self.dry_allowed_length,
            last_tokens: self.dry_penalty_last_n,
            breakers,
        }
    }
}

fn resolved(model: &Model, options: &GenerationOptions) -> anyhow::Result<Generation> {
    let generation = match model.generation(options) {
        Ok(generation) => generation,
        Err(sws::Error::Generation(GenerationError::Option { key, value, expected })) => {
            bail!("--{} is {value}, and must be {expected}", key.replace('_', "-"))
        }
        Err(error) => return Err(error.into()),
    };
    for sentence in &generation.ignored {
        note!("sws: {sentence}");
    }
    Ok(generation)
}
