//! `/v1/completions`.

use std::fmt;
use std::sync::Arc;

use serde::Deserialize;
use serde::de::{Deserializer, Error, SeqAccess, Visitor};
use serde_json::{Map, Value, json};
use sws::{BatchRequest, Cancel, Rank};
use sws_model::check_tokens;
use sws_text::Position;

use crate::app::App;
use crate::certified::certified;
use crate::failure::Failure;
use crate::fields::{Fields, RANKS, SamplingFields, entries, parse};
use crate::known::check_names;
use crate::messages::encoded;
use crate::names::names;
use crate::prepared::Prepared;
use crate::queue::{Happened, check_bytes, text_bytes};
use crate::reply::AnswerWriter;
use crate::served::Served;
use crate::sse::{comment, event};
use crate::structured::StructuredFields;
use crate::suffix::{end_at_marks, infill, prompt_tokens};
use crate::tally::{AnswerHead, TextTally, finish_reason, finite};

/// Default number of new tokens, as documented by OpenAI.
const NEW_TOKENS: usize = 16;

/// The fields of a completion.
#[derive(Debug, Deserialize)]
struct CompletionRequest {
    #[serde(default)]
    prompt: Option<Prompts>,
    #[serde(default)]
    echo: Option<bool>,
    #[serde(default)]
    logprobs: Option<u64>,
    #[serde(default)]
    suffix: Option<String>,
    #[serde(default)]
    best_of: Option<usize>,
    #[serde(default)]
    add_special_tokens: Option<bool>,
}

/// One prompt or several, each as text or as tokens.
#[derive(Debug)]
pub(crate) struct Prompts(pub(crate) Vec<CompletionPrompt>);

/// A prompt.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum CompletionPrompt {
    Text(String),
    Tokens(Vec<u32>),
}

/// An entry of a list of prompts.
enum PromptEntry {
    Prompt(CompletionPrompt),
    Token(u32),
}

impl<'de> Deserialize<'de> for Prompts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Prompts, D::Error> {
        struct PromptsVisitor;

        impl<'de> Visitor<'de> for PromptsVisitor {
            type Value = Prompts;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text, tokens, or a list of either")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Prompts, E> {
                Ok(Prompts(vec![CompletionPrompt::Text(text.to_owned())]))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Prompts, A::Error> {
                let mut prompts = Vec::new();
                let mut tokens = Vec::new();
                for entry in entries::<PromptEntry, A>(list)? {
                    match entry {
                        PromptEntry::Prompt(prompt) => prompts.push(prompt),
                        PromptEntry::Token(token) => tokens.push(token),
                    }
                }
                if tokens.is_empty() {
                    return Ok(Prompts(prompts));
                }
                match prompts.is_empty() {
                    true => Ok(Prompts(vec![CompletionPrompt::Tokens(tokens)])),
                    false => Err(A::Error::custom("a list mixes tokens and prompts")),
                }
            }
        }

        deserializer.deserialize_any(PromptsVisitor)
    }
}

impl<'de> Deserialize<'de> for PromptEntry {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<PromptEntry, D::Error> {
        struct PromptEntryVisitor;

        impl<'de> Visitor<'de> for PromptEntryVisitor {
            type Value = PromptEntry;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text, a token, or a list of tokens")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<PromptEntry, E> {
                Ok(PromptEntry::Prompt(CompletionPrompt::Text(text.to_owned())))
            }

            fn visit_u64<E: Error>(self, token: u64) -> Result<PromptEntry, E> {
                let token = u32::try_from(token);
                token.map(PromptEntry::Token).map_err(|_| E::custom("a token is out of range"))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<PromptEntry, A::Error> {
                Ok(PromptEntry::Prompt(CompletionPrompt::Tokens(entries(list)?)))
            }
        }

        deserializer.deserialize_any(PromptEntryVisitor)
    }
}

/// The request fields of this interface, without those that all interfaces share.
pub(crate) fn fields() -> Vec<&'static [&'static str]> {
    vec![names::<CompletionRequest>(), names::<StructuredFields>()]
}

/// The texts of a completion, and the parts of its answer.
pub(crate) struct CompletionTexts {
    pub(crate) texts: Vec<BatchRequest>,
    pub(crate) cancel: Cancel,
    pub(crate) tally: TextTally,
    pub(crate) sampling: SamplingFields,
    choices: Vec<UnsentText>,
    has_ranks: bool,
}

/// Prepares a completion.
pub(crate) fn prepare(app: &App, served: &Arc<Served>, body: &[u8]) -> Result<Prepared, Failure> {
    let CompletionTexts { texts, cancel, tally, sampling, choices, has_ranks } =
        completion_texts(app, served, body)?;
    let answer = Completed {
        head: AnswerHead::new(app, served, "cmpl-"),
        served: Arc::clone(served),
        tally,
        choices,
        has_ranks,
        stream: sampling.stream,
        usage: sampling.usage,
        is_over: false,
    };
    Ok(Prepared { texts, cancel, answer: Box::new(answer), stream: sampling.stream })
}

/// The texts for a request in OpenAI's form.
pub(crate) fn completion_texts(
    app: &App,
    served: &Arc<Served>,
    body: &[u8],
) -> Result<CompletionTexts, Failure> {
    check_names(app, body, &fields())?;
    let mut sampling = parse::<Fields>(body)?.of_a_text(app, served, NEW_TOKENS)?;
    let CompletionRequest { prompt, echo, logprobs, suffix, best_of, add_special_tokens } =
        parse(body)?;
    let suffix = suffix.filter(|suffix| !suffix.is_empty());
    if suffix.is_some() {
        end_at_marks(&mut sampling.generation, &infill(served, "suffix")?);
    }
    if best_of.is_some_and(|best| best != sampling.n) {
        return Err(Failure::unsupported("best_of", "best_of is supported only if it equals n"));
    }
    if let Some(logprobs) = logprobs
        && logprobs > RANKS
    {
        let message = format!("logprobs is {logprobs}, and must be at most {RANKS}");
        return Err(Failure::field("logprobs", message));
    }
    let echo = echo.unwrap_or(false);
    let special = add_special_tokens.unwrap_or(true);
    let prompt_ranks = echo && logprobs.is_some();
    if prompt_ranks && !served.prompt_ranks {
        return Err(Failure::unsupported(
            "echo",
            "probabilities of prompts need memory that was not planned; start the server with --prompt-logprobs",
        ));
    }
    let prompts = prompt.map_or(Vec::new(), |prompts| prompts.0);
    let most = app.config.limits.texts;
    if prompts.is_empty() || prompts.len().saturating_mul(sampling.n) > most {
        let message = format!("a request has 1 to {most} texts: its prompts times n");
        return Err(Failure::field("prompt", message));
    }
    let constraint = match parse::<StructuredFields>(body)?.output_format()? {
        Some(format) => Some(format.of_a_text(served, &sampling.generation)?),
        None => None,
    };
    let cancel = Cancel::new();
    let mut texts = Vec::new();
    let mut choices = Vec::new();
    let mut total = 0;
    let mut bytes = 0;
    for prompt in prompts {
        let (tokens, echoed) = tokens(served, prompt, suffix.as_deref(), special, echo)?;
        total += tokens.len();
        let text = BatchRequest {
            tokens,
            generation: sampling.generation(0),
            position: Position::Middle,
            bias: sampling.bias.clone(),
            constraint: constraint.clone(),
            ranks: logprobs.map(|top| top as usize),
            prompt_ranks,
            pooling: None,
            witness: None,
            short_lived: false,
            owner: 0,
            cancel: cancel.clone(),
        };
        bytes += (sampling.n + 1) * text_bytes(&text);
        if sampling.n > 1 || !texts.is_empty() {
            check_bytes(bytes, &app.config.limits)?;
        }
        let echoed: Arc<str> = echoed.into();
        for number in 0..sampling.n {
            choices.push(UnsentText::new(&text.tokens, &echoed, prompt_ranks, served));
            texts.push(BatchRequest { generation: sampling.generation(number), ..text.clone() });
        }
    }
    let certified = certified(app, served, &sampling, &mut texts)?;
    let tally = TextTally::new(total, texts.len() / sampling.n, sampling.n).with(certified);
    let has_ranks = logprobs.is_some();
    Ok(CompletionTexts { texts, cancel, tally, sampling, choices, has_ranks })
}

/// The tokens of a prompt, and its text if that is part of the answer. `special` adds the tokens
/// that begin a text.
fn tokens(
    served: &Served,
    prompt: CompletionPrompt,
    suffix: Option<&str>,
    special: bool,
    echo: bool,
) -> Result<(Vec<u32>, String), Failure> {
    let (tokens, text) = match prompt {
        CompletionPrompt::Text(text) => match suffix {
            Some(suffix) => (prompt_tokens(served, "suffix", &text, suffix, &[])?, text),
            None => (encoded(served, &text, special)?, text),
        },
        CompletionPrompt::Tokens(_) if suffix.is_some() => {
            let message = "a prompt before a suffix is a text; send it as one";
            return Err(Failure::field("prompt", message));
        }
        CompletionPrompt::Tokens(tokens) => {
            let tokenizer = served.text.tokenizer().filter(|_| echo);
            let text = tokenizer.map_or(String::new(), |known| known.decode(&tokens, false));
            (tokens, text)
        }
    };
    check_tokens(&tokens, 0, served.limit, served.vocab).map_err(|e| Failure::of(&e.into()))?;
    Ok((tokens, if echo { text } else { String::new() }))
}

/// The parts of a text that were not sent yet.
struct UnsentText {
    /// The prompt, with which the text begins if it is part of the answer.
    echoed: Arc<str>,
    text: String,
    tokens: Vec<String>,
    logprobs: Vec<Value>,
    top: Vec<Value>,
    offsets: Vec<usize>,
    /// Number of characters of the text so far, with each token decoded separately.
    characters: usize,
}

impl UnsentText {
    /// With `ranks`, the first token of the prompt has no probability.
    fn new(prompt: &[u32], echoed: &Arc<str>, ranks: bool, served: &Served) -> UnsentText {
        let mut choice = UnsentText {
            echoed: Arc::clone(echoed),
            text: String::new(),
            tokens: Vec::new(),
            logprobs: Vec::new(),
            top: Vec::new(),
            offsets: Vec::new(),
            characters: 0,
        };
        if ranks && let Some(&first) = prompt.first() {
            choice.push(served.name(first), Value::Null, Value::Null);
        }
        choice
    }

    /// The text has begun. Until then choices share the prompt.
    fn begin(&mut self) {
        self.text.push_str(&self.echoed);
    }

    fn push(&mut self, name: String, logprob: Value, top: Value) {
        self.offsets.push(self.characters);
        self.characters += name.chars().count();
        self.tokens.push(name);
        self.logprobs.push(logprob);
        self.top.push(top);
    }

    fn rank(&mut self, served: &Served, rank: &Rank) {
        let mut top = Map::new();
        // The chosen token comes first: where two tokens have the same text, it keeps its own
        // probability.
        let chosen = served.name(rank.token);
        top.insert(chosen.clone(), finite(rank.logprob).into());
        for &(token, logprob) in rank.top.iter().filter(|(token, _)| *token != rank.token) {
            let mut name = served.name(token);
            if top.contains_key(&name) {
                name = format!("{name}#{token}");
            }
            top.insert(name, finite(logprob).into());
        }
        self.push(chosen, finite(rank.logprob).into(), Value::Object(top));
    }

    /// True if there is nothing to send.
    fn is_empty(&self) -> bool {
        self.text.is_empty() && self.tokens.is_empty()
    }

    /// Takes the parts that were not sent yet.
    fn take(&mut self, number: usize, has_ranks: bool, reason: Option<&str>) -> Value {
        use std::mem::take;
        let logprobs = match has_ranks {
            true => json!({
                "tokens": take(&mut self.tokens),
                "token_logprobs": take(&mut self.logprobs),
                "top_logprobs": take(&mut self.top),
                "text_offset": take(&mut self.offsets),
            }),
            false => Value::Null,
        };
        let text = take(&mut self.text);
        json!({"index": number, "text": text, "logprobs": logprobs, "finish_reason": reason})
    }
}

/// The answer to a request for completions.
struct Completed {
    head: AnswerHead,
    served: Arc<Served>,
    tally: TextTally,
    choices: Vec<UnsentText>,
    has_ranks: bool,
    stream: bool,
    usage: bool,
    is_over: bool,
}

impl Completed {
    fn send(&mut self, number: usize, reason: Option<&str>, out: &mut String) {
        let choice = self.choices[number].take(number, self.has_ranks, reason);
        let mut chunk = self.head.object("text_completion", vec![choice]);
        if self.usage {
            chunk["usage"] = Value::Null;
        }
        event(out, &chunk);
    }

    fn whole(&mut self) -> Value {
        let ends: Vec<_> = self.tally.made().map(|made| made.made.end).collect();
        let mut choices = Vec::with_capacity(ends.len());
        for (number, (end, choice)) in ends.into_iter().zip(&mut self.choices).enumerate() {
            choices.push(choice.take(number, self.has_ranks, Some(finish_reason(end))));
        }
        let mut whole = self.head.object("text_completion", choices);
        whole["usage"] = self.tally.usage();
        self.tally.add_costs(&mut whole);
        whole
    }
}

impl AnswerWriter for Completed {
    fn begin(&mut self, out: &mut String) {
        comment(out, "keep-alive");
    }

    fn take(&mut self, number: usize, happened: Happened, out: &mut String) -> Result<(), Failure> {
        let choice = &mut self.choices[number];
        match happened {
            Happened::Began => choice.begin(),
            Happened::Known(known) => self.tally.know(number, known),
            Happened::Prompt(progress) if self.stream && progress.done < progress.total => {
                comment(out, &format!("prompt {}/{}", progress.done, progress.total));
            }
            Happened::Ranked(ranks) => {
                for rank in &ranks {
                    choice.rank(&self.served, rank);
                }
            }
            Happened::Piece(piece, rank) => {
                choice.text.push_str(&piece.text);
                if let Some(rank) = rank {
                    choice.rank(&self.served, &rank);
                }
                if self.stream && !choice.is_empty() {
                    self.send(number, None, out);
                }
            }
            Happened::Ended(made) => {
                let end = self.tally.end(number, *made)?;
                if self.stream {
                    self.send(number, Some(finish_reason(end)), out);
                }
                if self.tally.is_complete() {
                    self.is_over = true;
                    if !self.stream {
                        out.push_str(&self.whole().to_string());
                        return Ok(());
                    }
                    if self.usage || self.tally.is_certified() {
                        let mut last = self.head.object("text_completion", Vec::new());
                        last["usage"] = self.tally.usage();
                        self.tally.add_costs(&mut last);
                        event(out, &last);
                    }
                    out.push_str("data: [DONE]\n\n");
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn is_over(&self) -> bool {
        self.is_over
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_are_texts_or_tokens() {
        let parsed = |json: &str| serde_json::from_str::<Prompts>(json).ok().map(|found| found.0);
        let text = |text: &str| CompletionPrompt::Text(text.to_owned());
        assert_eq!(parsed("\"a\""), Some(vec![text("a")]));
        assert_eq!(parsed("[\"a\", \"b\"]"), Some(vec![text("a"), text("b")]));
        assert_eq!(parsed("[1, 2]"), Some(vec![CompletionPrompt::Tokens(vec![1, 2])]));
        let two = vec![CompletionPrompt::Tokens(vec![1]), CompletionPrompt::Tokens(vec![2, 3])];
        assert_eq!(parsed("[[1], [2, 3]]"), Some(two));
        assert_eq!(parsed("[]"), Some(Vec::new()));
        for bad in
            ["1", "{}", "[1, \"a\"]", "[[\"a\"]]", "[-1]", "[4294967296]", "[[[1]]]", "[1.5]"]
        {
            assert_eq!(parsed(bad), None, "{bad}");
        }
    }
}
