//! Request fields that several interfaces share.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserialize, Deserializer, Error, IgnoredAny, SeqAccess, Visitor};
use sws::GenerationOptions;
use sws_text::{ChatTemplate, DryOptions, Generation, GenerationError};

use crate::app::App;
use crate::failure::{Failure, shortened};
use crate::served::Served;

/// The field for features that only this server has, such as certificates.
pub(crate) const EXTENSION: &str = "x_sws";
/// Maximum number of entries of a list in a request.
const ENTRIES: usize = 1 << 16;
/// Maximum number of bytes of a stop string.
const STOP: usize = 1 << 10;
/// Maximum number of most likely tokens reported beside a token.
pub(crate) const RANKS: u64 = 20;
/// Maximum number of characters of a client's value in a message.
const VALUE: usize = 200;
/// Maximum number of tokens with a bias.
const BIASES: usize = 1024;

/// Fields that several interfaces share. An interface in which one of them has another meaning
/// reads that field itself.
#[derive(Debug, Default, serde::Deserialize)]
#[serde(default)]
pub(crate) struct Fields {
    model: Option<String>,
    stream: Option<bool>,
    stream_options: Option<StreamOptions>,
    max_tokens: Option<i64>,
    max_completion_tokens: Option<i64>,
    /// Limit of new tokens, in the spelling of llama.cpp.
    n_predict: Option<i64>,
    /// The name that this interface alone has for the limit of new tokens, and the limit.
    #[serde(skip)]
    own_limit: Option<(&'static str, i64)>,
    n: Option<usize>,
    temperature: Option<f32>,
    top_p: Option<f32>,
    top_k: Option<i64>,
    min_p: Option<f32>,
    presence_penalty: Option<f32>,
    frequency_penalty: Option<f32>,
    repetition_penalty: Option<f32>,
    /// Repetition penalty, in the spelling of llama.cpp.
    repeat_penalty: Option<f32>,
    dry_multiplier: Option<f32>,
    dry_base: Option<f32>,
    dry_allowed_length: Option<i64>,
    dry_penalty_last_n: Option<i64>,
    dry_sequence_breakers: Option<Many<String>>,
    seed: Option<i64>,
    stop: Option<OneOrMany<String>>,
    stop_sequences: Option<OneOrMany<String>>,
    ignore_eos: Option<bool>,
    logit_bias: Option<BTreeMap<String, f32>>,
    x_sws: Option<Extras>,
}

/// Features that only this server has.
#[derive(Clone, Copy, Debug, Default, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Extras {
    certificate: Option<bool>,
}

/// Options of a stream.
#[derive(Clone, Copy, Debug, Default, serde::Deserialize)]
#[serde(default)]
pub(crate) struct StreamOptions {
    include_usage: Option<bool>,
}

/// Options of the texts of a request.
#[derive(Clone, Debug)]
pub(crate) struct SamplingFields {
    pub(crate) generation: Generation,
    pub(crate) bias: Vec<(u32, f32)>,
    /// Number of texts for each prompt. Each text has the seed of the previous one plus one.
    pub(crate) n: usize,
    pub(crate) stream: bool,
    /// True if a stream ends with the numbers of tokens.
    pub(crate) usage: bool,
    /// True if a certificate was requested.
    pub(crate) certificate: bool,
}

/// The refusal of a certificate.
pub(crate) fn uncertified(why: &str) -> Failure {
    Failure::unsupported(EXTENSION, why)
}

/// Parses a request.
pub(crate) fn parse<'b, T: Deserialize<'b>>(body: &'b [u8]) -> Result<T, Failure> {
    serde_json::from_slice(body).map_err(|error| {
        let error = in_words(&error.to_string());
        Failure::invalid(format!("the request cannot be read: {error}"))
    })
}

/// The parser's message, without the names of types. A long value is shortened to its beginning and
/// end.
pub(crate) fn in_words(message: &str) -> String {
    const EXPECTED: &str = ", expected ";
    // The client's own text comes before the last match.
    let Some(at) = message.rfind(EXPECTED) else { return shortened(message, VALUE) };
    let (before, after) = message.split_at(at + EXPECTED.len());
    let before = shortened(before, VALUE);
    let end = after.find(" at line ").unwrap_or(after.len());
    let (kind, place) = after.split_at(end);
    let kind = match kind {
        "usize" | "u64" | "u32" | "i64" => "a whole number",
        "f32" | "f64" => "a number",
        kind if kind.starts_with("struct ") => "an object",
        kind => kind,
    };
    format!("{before}{kind}{place}")
}

impl Fields {
    /// Resolves the fields of a text to continue. `new_tokens` is the default limit.
    pub(crate) fn of_a_text(
        self,
        app: &App,
        served: &Served,
        new_tokens: usize,
    ) -> Result<SamplingFields, Failure> {
        let options =
            GenerationOptions { max_new_tokens: Some(new_tokens), ..GenerationOptions::default() };
        self.resolve(app, served, options)
    }

    /// Resolves the fields of a conversation, whose answers keep special tokens.
    pub(crate) fn of_a_conversation(
        self,
        app: &App,
        served: &Served,
    ) -> Result<SamplingFields, Failure> {
        let options = GenerationOptions {
            conversation: true,
            thinks: served.text.template().is_some_and(ChatTemplate::thinks),
            ..GenerationOptions::default()
        };
        let mut sampling = self.resolve(app, served, options)?;
        sampling.generation.shown_tokens.clone_from(&served.shown);
        Ok(sampling)
    }

    /// Sets the limit of new tokens from a field that this interface alone has.
    pub(crate) fn limited(self, name: &'static str, tokens: Option<i64>) -> Fields {
        Fields { own_limit: tokens.map(|tokens| (name, tokens)), ..self }
    }

    /// Resolves the fields on top of these default options.
    fn resolve(
        self,
        app: &App,
        served: &Served,
        over: GenerationOptions,
    ) -> Result<SamplingFields, Failure> {
        let limits = &app.config.limits;
        if let Some(model) = &self.model
            && !served.is_named(model)
        {
            return Err(app.no_model(model));
        }
        let mut stop = self.stop.map_or(Vec::new(), |stop| stop.0);
        stop.extend(self.stop_sequences.into_iter().flat_map(|stop| stop.0));
        if stop.len() > limits.stops {
            let most = limits.stops;
            let message =
                format!("there are {} stop strings, and at most {most} are allowed", stop.len());
            return Err(Failure::field("stop", message));
        }
        if stop.iter().any(|stop| stop.len() > STOP) {
            let message = format!("a stop string has more than {STOP} bytes; shorten it");
            return Err(Failure::field("stop", message));
        }
        if !stop.is_empty() {
            served.tokenizer()?;
        }
        let n = self.n.unwrap_or(1);
        if n == 0 || n > limits.texts {
            let message = format!("n is {n}, and must be between 1 and {}", limits.texts);
            return Err(Failure::field("n", message));
        }
        let top_k = match self.top_k {
            None => None,
            // In some interfaces -1 means all.
            Some(-1) => Some(0),
            Some(k) => Some(usize::try_from(k).map_err(|_| {
                Failure::field("top_k", format!("top_k is {k}, and must not be negative"))
            })?),
        };
        let limit = |name, given: Option<i64>| Some((name, given?));
        let asked = (self.own_limit)
            .or(limit("max_completion_tokens", self.max_completion_tokens))
            .or(limit("max_tokens", self.max_tokens))
            .or(limit("n_predict", self.n_predict));
        let max_new_tokens = match asked {
            None => over.max_new_tokens,
            // All that the context has room for, whatever the model's default is.
            Some((name, tokens)) => Some(count(name, Some(tokens), -1)?.unwrap_or(usize::MAX)),
        };
        let dry = DryOptions {
            multiplier: self.dry_multiplier,
            base: self.dry_base,
            allowed_length: count("dry_allowed_length", self.dry_allowed_length, 0)?,
            last_tokens: count("dry_penalty_last_n", self.dry_penalty_last_n, -1)?,
            breakers: self.dry_sequence_breakers.map(|breakers| breakers.0),
        };
        let options = GenerationOptions {
            temperature: self.temperature,
            top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            repetition_penalty: self.repetition_penalty.or(self.repeat_penalty),
            presence_penalty: self.presence_penalty,
            frequency_penalty: self.frequency_penalty,
            dry,
            seed: self.seed.map(|seed| seed as u64),
            max_new_tokens,
            stop,
            ignore_eos: self.ignore_eos.unwrap_or(false),
            conversation: over.conversation,
            thinks: over.thinks,
        };
        let mut generation = served.defaults.generation(&options).map_err(|e| refused(&e))?;
        let most = limits.new_tokens.unwrap_or(usize::MAX);
        generation.max_new_tokens = match generation.max_new_tokens {
            Some(tokens) => Some(tokens.min(most)),
            None => limits.new_tokens,
        };
        Ok(SamplingFields {
            generation,
            bias: biases(self.logit_bias.unwrap_or_default(), served.vocab)?,
            n,
            stream: self.stream.unwrap_or(false),
            usage: self.stream_options.and_then(|options| options.include_usage).unwrap_or(false),
            certificate: self.x_sws.and_then(|extras| extras.certificate).unwrap_or(false),
        })
    }
}

impl SamplingFields {
    /// Refuses several texts and certificates, for answers that cannot contain them.
    pub(crate) fn of_one_text(self) -> Result<SamplingFields, Failure> {
        if self.n > 1 {
            let message = "answers have one text here; use /v1/chat/completions for several";
            return Err(Failure::unsupported("n", message));
        }
        match self.certificate {
            true => Err(uncertified(
                "certificates come with /v1/chat/completions and /v1/completions; ask there",
            )),
            false => Ok(self),
        }
    }

    /// Options of the text with this number among the texts of a prompt.
    pub(crate) fn generation(&self, number: usize) -> Generation {
        let mut generation = self.generation.clone();
        generation.sampling.seed = generation.sampling.seed.wrapping_add(number as u64);
        generation
    }
}

/// A number of tokens, of which -1 means all if it is allowed.
fn count(name: &str, given: Option<i64>, least: i64) -> Result<Option<usize>, Failure> {
    match given {
        Some(given) if given < least => {
            Err(Failure::field(name, format!("{name} is {given}, and must be at least {least}")))
        }
        given => Ok(given.and_then(|given| usize::try_from(given).ok())),
    }
}

/// The refusal of an option.
fn refused(error: &sws::Error) -> Failure {
    match error {
        sws::Error::Generation(GenerationError::Option { key, .. }) => {
            Failure::field(key, error.to_string())
        }
        _ => Failure::of(error),
    }
}

fn biases(given: BTreeMap<String, f32>, vocab: usize) -> Result<Vec<(u32, f32)>, Failure> {
    const NAME: &str = "logit_bias";
    if given.len() > BIASES {
        return Err(Failure::field(NAME, format!("logit_bias has more than {BIASES} tokens")));
    }
    let bias = |(token, bias): (String, f32)| {
        let id = token.parse::<u32>().ok().filter(|&id| (id as usize) < vocab);
        match id {
            Some(id) if (-100.0..=100.0).contains(&bias) => Ok((id, bias)),
            Some(_) => Err("a bias must be between -100 and 100".to_owned()),
            None => Err(format!("the tokens of logit_bias are numbers below {vocab}")),
        }
    };
    let biases = given.into_iter().map(bias).collect::<Result<_, _>>();
    biases.map_err(|message| Failure::field(NAME, message))
}

/// One value, or a list of them.
#[derive(Clone, Debug)]
pub(crate) struct OneOrMany<T>(pub(crate) Vec<T>);

impl<'de, T: Deserialize<'de> + From<String>> Deserialize<'de> for OneOrMany<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OneOrManyVisitor<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de> + From<String>> Visitor<'de> for OneOrManyVisitor<T> {
            type Value = OneOrMany<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string or a list")
            }

            fn visit_str<E: Error>(self, word: &str) -> Result<Self::Value, E> {
                Ok(OneOrMany(vec![T::from(word.to_owned())]))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Self::Value, A::Error> {
                Ok(OneOrMany(entries(list)?))
            }
        }

        deserializer.deserialize_any(OneOrManyVisitor(PhantomData))
    }
}

/// A list with a limited number of entries.
#[derive(Clone, Debug)]
pub(crate) struct Many<T>(pub(crate) Vec<T>);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Many<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ManyVisitor<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for ManyVisitor<T> {
            type Value = Many<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Self::Value, A::Error> {
                Ok(Many(entries(list)?))
            }
        }

        deserializer.deserialize_seq(ManyVisitor(PhantomData))
    }
}

/// A field of which only the presence matters.
pub(crate) type Nothing = IgnoredAny;

/// Collects a list, up to the maximum number of entries.
pub(crate) fn entries<'de, T: Deserialize<'de>, A: SeqAccess<'de>>(
    mut list: A,
) -> Result<Vec<T>, A::Error> {
    let mut entries = Vec::new();
    while let Some(entry) = list.next_element()? {
        if entries.len() == ENTRIES {
            return Err(A::Error::custom("a list is too long"));
        }
        entries.push(entry);
    }
    Ok(entries)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_string_is_a_list_of_one() {
        let parsed = |json: &str| serde_json::from_str::<OneOrMany<String>>(json).ok();
        let words = |json| parsed(json).map(|words| words.0);
        assert_eq!(words("\"a\\n\""), Some(vec!["a\n".to_owned()]));
        assert_eq!(words("[\"a\", \"b\"]"), Some(vec!["a".to_owned(), "b".to_owned()]));
        assert_eq!(words("[]"), Some(Vec::new()));
        for bad in ["1", "{}", "[1]", "[\"a\", null]"] {
            assert_eq!(words(bad), None, "{bad}");
        }
        let long = format!("[{}\"\"]", "\"\",".repeat(ENTRIES));
        assert_eq!(words(&long), None);
    }

    #[test]
    fn biases_are_bounded() {
        let given = |token: &str, bias| biases([(token.to_owned(), bias)].into(), 10);
        assert_eq!(given("9", -100.0).unwrap(), [(9, -100.0)]);
        for (token, bias) in [("10", 0.0), ("-1", 0.0), ("a", 0.0), ("1", 101.0), ("1", f32::NAN)] {
            assert!(given(token, bias).is_err(), "{token}: {bias}");
        }
    }

    #[test]
    fn deep_and_broken_requests_are_refused() {
        let deep = format!("{{\"stop\": {}", "[".repeat(10_000));
        for body in ["", "3", "{", "{\"n\": \"1\"}", "{\"n\": -1}", "{\"temperature\": []}"] {
            assert!(parse::<Fields>(body.as_bytes()).is_err(), "{body}");
        }
        assert!(parse::<Fields>(deep.as_bytes()).is_err());
        assert!(parse::<Fields>(b"{\"n\": null, \"x\": {\"y\": []}}").is_ok());
        assert!(parse::<Fields>(b"\xff{}").is_err());
    }
}
