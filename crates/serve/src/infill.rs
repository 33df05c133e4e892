//! `/infill` and `/completion`, in the form of llama.cpp's server: the text between a prefix and a
//! suffix, and the text after a prompt.

use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Map, Value, json};
use sws::End;
use sws_text::InfillFile;

use crate::app::App;
use crate::completions::{CompletionTexts, completion_texts};
use crate::failure::Failure;
use crate::fields::{Many, parse};
use crate::names::names;
use crate::prepared::Prepared;
use crate::queue::Happened;
use crate::reply::AnswerWriter;
use crate::served::Served;
use crate::sse::event;
use crate::structured::StructuredFields;
use crate::suffix::{end_at_marks, infill, prompt_tokens};
use crate::tally::{TextTally, finish_reason};

/// The fields of a text to fill in.
#[derive(Debug, Deserialize)]
struct InfillRequest {
    input_prefix: String,
    input_suffix: String,
    #[serde(default)]
    input_extra: Option<Many<ExtraFile>>,
    #[serde(default)]
    prompt: Option<String>,
    /// The order of samplers, of which this server has one.
    #[serde(default, rename = "samplers")]
    _samplers: Option<Value>,
}

/// A file that the text may refer to.
#[derive(Clone, Debug, Deserialize)]
struct ExtraFile {
    text: String,
    #[serde(default)]
    filename: Option<String>,
}

/// The request fields of this interface, without those that all interfaces share.
pub(crate) fn fields() -> Vec<&'static [&'static str]> {
    vec![names::<InfillRequest>(), names::<StructuredFields>()]
}

/// Prepares a text to fill in.
pub(crate) fn prepare(app: &App, served: &Arc<Served>, body: &[u8]) -> Result<Prepared, Failure> {
    let InfillRequest { input_prefix, input_suffix, input_extra, prompt, .. } = parse(body)?;
    let mut files = Vec::new();
    for file in input_extra.map_or(Vec::new(), |files| files.0) {
        files.push(InfillFile { name: file.filename, text: file.text });
    }
    let prefix = input_prefix + &prompt.unwrap_or_default();
    let tokens = prompt_tokens(served, "input_suffix", &prefix, &input_suffix, &files)?;
    let mut fields: Map<String, Value> = parse(body)?;
    fields.retain(|name, _| !names::<InfillRequest>().contains(&name.as_str()));
    fields.insert("prompt".to_owned(), tokens.into());
    let mut prepared = of_fields(app, served, fields)?;
    for text in &mut prepared.texts {
        end_at_marks(&mut text.generation, &infill(served, "input_suffix")?);
    }
    Ok(prepared)
}

/// Prepares the text after a prompt.
pub(crate) fn continued(app: &App, served: &Arc<Served>, body: &[u8]) -> Result<Prepared, Failure> {
    of_fields(app, served, parse(body)?)
}

/// Prepares a text for a completion in OpenAI's form.
fn of_fields(
    app: &App,
    served: &Arc<Served>,
    mut fields: Map<String, Value>,
) -> Result<Prepared, Failure> {
    // Without a limit the context is the limit, unlike the default of completions.
    if !["n_predict", "max_tokens", "max_completion_tokens"]
        .iter()
        .any(|it| fields.contains_key(*it))
    {
        fields.insert("n_predict".to_owned(), (-1).into());
    }
    let body = Value::from(fields).to_string();
    let CompletionTexts { texts, cancel, tally, sampling, .. } =
        completion_texts(app, served, body.as_bytes())?;
    if texts.len() > 1 {
        let message = "an answer has one text here; use /v1/completions for several";
        return Err(Failure::unsupported("prompt", message));
    }
    let stream = sampling.of_one_text()?.stream;
    let model = served.id().to_owned();
    let answer = ContentAnswer { model, tally, text: String::new(), stream, is_over: false };
    Ok(Prepared { texts, cancel, answer: Box::new(answer), stream })
}

/// The answer: events with parts of the text, or the whole.
struct ContentAnswer {
    model: String,
    tally: TextTally,
    /// The text, if it is sent as a whole.
    text: String,
    stream: bool,
    is_over: bool,
}

impl ContentAnswer {
    /// The last event, or the only one.
    fn last(&mut self, end: End) -> Value {
        let [prompt, new] = self.tally.tokens();
        let kind = match end {
            End::StopString => "word",
            _ if finish_reason(end) == "length" => "limit",
            _ => "eos",
        };
        let mut last = json!({
            "content": std::mem::take(&mut self.text),
            "stop": true,
            "stop_type": kind,
            "model": self.model,
            "tokens_evaluated": prompt,
            "tokens_predicted": new,
            "tokens_cached": self.tally.known(),
            "truncated": false,
        });
        self.tally.add_costs(&mut last);
        last
    }
}

impl AnswerWriter for ContentAnswer {
    fn take(&mut self, number: usize, happened: Happened, out: &mut String) -> Result<(), Failure> {
        match happened {
            Happened::Known(known) => self.tally.know(number, known),
            Happened::Piece(piece, _) if !self.stream => self.text.push_str(&piece.text),
            Happened::Piece(piece, _) if !piece.text.is_empty() => {
                let tokens: Vec<u32> = piece.token.into_iter().collect();
                let part = json!({"content": piece.text, "tokens": tokens, "stop": false});
                event(out, &part);
            }
            Happened::Ended(made) => {
                let end = self.tally.end(number, *made)?;
                self.is_over = true;
                let last = self.last(end);
                match self.stream {
                    true => event(out, &last),
                    false => out.push_str(&last.to_string()),
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
