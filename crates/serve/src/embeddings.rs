//! `/v1/embeddings`, and the same in Ollama's form: texts as vectors.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Value, json};
use sws::{BatchRequest, Cancel, GenerationOptions, StatePooling};
use sws_model::check_tokens;

use crate::app::App;
use crate::completions::{CompletionPrompt, Prompts};
use crate::failure::Failure;
use crate::fields::{Nothing, parse};
use crate::known::check_names;
use crate::messages::encoded;
use crate::names::names;
use crate::prepared::Prepared;
use crate::queue::{Happened, check_bytes, text_bytes};
use crate::reply::AnswerWriter;
use crate::served::Served;
use crate::tally::TextTally;

/// The fields of a request in OpenAI's form.
#[derive(Debug, Deserialize)]
struct EmbeddingFields {
    #[serde(default)]
    model: Option<String>,
    input: Prompts,
    #[serde(default)]
    encoding_format: Option<String>,
    #[serde(default)]
    dimensions: Option<usize>,
}

/// The fields of a request in Ollama's form. Older clients send a `prompt`.
#[derive(Debug, Deserialize)]
struct EmbedFields {
    model: String,
    #[serde(default)]
    input: Option<Prompts>,
    #[serde(default)]
    prompt: Option<String>,
    #[serde(default)]
    dimensions: Option<usize>,
    #[serde(default, rename = "truncate")]
    _truncate: Option<Nothing>,
    #[serde(default, rename = "options")]
    _options: Option<BTreeMap<String, Nothing>>,
    #[serde(default, rename = "keep_alive")]
    _keep_alive: Option<Nothing>,
}

/// The form of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum VectorForm {
    /// OpenAI's, with numbers.
    Numbers,
    /// OpenAI's, with the bytes of numbers in base64.
    Base64,
    /// Ollama's.
    Ollama,
    /// Ollama's for a single prompt.
    OllamaPrompt,
}

/// The request fields in OpenAI's form.
pub(crate) fn fields() -> Vec<&'static [&'static str]> {
    vec![names::<EmbeddingFields>()]
}

/// The request fields in Ollama's form.
pub(crate) fn ollama_fields() -> Vec<&'static [&'static str]> {
    vec![names::<EmbedFields>()]
}

/// Prepares a request in OpenAI's form.
pub(crate) fn prepare(app: &App, served: &Arc<Served>, body: &[u8]) -> Result<Prepared, Failure> {
    let pooling = pooling(served)?;
    check_names(app, body, &fields())?;
    let EmbeddingFields { model, input, encoding_format, dimensions } = parse(body)?;
    let form = match encoding_format.as_deref() {
        None | Some("float") => VectorForm::Numbers,
        Some("base64") => VectorForm::Base64,
        Some(_) => {
            let message = "encoding_format is neither `float` nor `base64`";
            return Err(Failure::field("encoding_format", message));
        }
    };
    let asked = VectorsAsked { model, prompts: input.0, dimensions, form };
    asked.prepared(app, served, pooling)
}

/// Prepares a request in Ollama's form.
pub(crate) fn embed(app: &App, served: &Arc<Served>, body: &[u8]) -> Result<Prepared, Failure> {
    let pooling = pooling(served)?;
    let EmbedFields { model, input, prompt, dimensions, .. } = parse(body)?;
    let (prompts, form) = match (input, prompt) {
        (Some(input), _) => (input.0, VectorForm::Ollama),
        (None, Some(prompt)) => (vec![CompletionPrompt::Text(prompt)], VectorForm::OllamaPrompt),
        (None, None) => return Err(Failure::field("input", "there is no input")),
    };
    let asked = VectorsAsked { model: Some(model), prompts, dimensions, form };
    asked.prepared(app, served, pooling)
}

fn pooling(served: &Served) -> Result<StatePooling, Failure> {
    served.identity.pooling.ok_or_else(|| {
        Failure::not_offered(
            "embeddings are not supported by this model: neither `pooling_type` in a GGUF file nor 1_Pooling/config.json says how its texts become vectors",
        )
    })
}

/// What a request asks for.
struct VectorsAsked {
    model: Option<String>,
    prompts: Vec<CompletionPrompt>,
    dimensions: Option<usize>,
    form: VectorForm,
}

impl VectorsAsked {
    fn prepared(
        self,
        app: &App,
        served: &Arc<Served>,
        pooling: StatePooling,
    ) -> Result<Prepared, Failure> {
        let VectorsAsked { model, prompts, dimensions, form } = self;
        if let Some(model) = model
            && !served.is_named(&model)
        {
            return Err(app.no_model(&model));
        }
        let width = served.model.spec().hidden;
        if let Some(dimensions) = dimensions
            && !(1..=width).contains(&dimensions)
        {
            let message = format!("dimensions is {dimensions}, and must be between 1 and {width}");
            return Err(Failure::field("dimensions", message));
        }
        let most = app.config.limits.texts;
        if prompts.is_empty() || prompts.len() > most {
            let message = format!("a request has 1 to {most} texts; send the others in another");
            return Err(Failure::field("input", message));
        }
        let options = GenerationOptions { max_new_tokens: Some(0), ..Default::default() };
        let generation = served.defaults.generation(&options).map_err(|e| Failure::of(&e))?;
        let cancel = Cancel::new();
        let mut texts = Vec::with_capacity(prompts.len());
        let mut bytes = 0;
        for prompt in prompts {
            let tokens = match prompt {
                CompletionPrompt::Text(text) => encoded(served, &text, true)?,
                CompletionPrompt::Tokens(tokens) => tokens,
            };
            check_tokens(&tokens, 0, served.limit, served.vocab)
                .map_err(|e| Failure::of(&e.into()))?;
            let text = BatchRequest {
                pooling: Some(pooling),
                cancel: cancel.clone(),
                ..BatchRequest::new(tokens, generation.clone())
            };
            bytes += text_bytes(&text);
            texts.push(text);
            if texts.len() > 1 {
                check_bytes(bytes, &app.config.limits)?;
            }
        }
        let tokens = texts.iter().map(|text| text.tokens.len()).sum();
        let answer = VectorsAnswer {
            model: served.id().to_owned(),
            pooling,
            form,
            dimensions: dimensions.unwrap_or(width),
            tally: TextTally::new(tokens, texts.len(), 1),
            vectors: vec![Vec::new(); texts.len()],
            is_over: false,
        };
        Ok(Prepared { texts, cancel, answer: Box::new(answer), stream: false })
    }
}

/// The vectors of all texts.
struct VectorsAnswer {
    model: String,
    pooling: StatePooling,
    form: VectorForm,
    dimensions: usize,
    tally: TextTally,
    vectors: Vec<Vec<f32>>,
    is_over: bool,
}

impl VectorsAnswer {
    fn whole(&mut self) -> Value {
        let [tokens, _] = self.tally.tokens();
        let mut vectors = std::mem::take(&mut self.vectors);
        for vector in &mut vectors {
            shorten(vector, self.dimensions);
        }
        match self.form {
            VectorForm::Numbers | VectorForm::Base64 => {
                let mut data = Vec::with_capacity(vectors.len());
                for (index, vector) in vectors.into_iter().enumerate() {
                    let vector: Value = match self.form {
                        VectorForm::Base64 => base64(&vector).into(),
                        _ => json!(vector),
                    };
                    data.push(json!({"object": "embedding", "index": index, "embedding": vector}));
                }
                let mut x_sws = self.tally.spent();
                x_sws["pooling"] = match self.pooling {
                    StatePooling::Mean => "mean".into(),
                    StatePooling::Last => "last".into(),
                };
                json!({
                    "object": "list",
                    "data": data,
                    "model": self.model,
                    "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
                    "x_sws": x_sws,
                })
            }
            VectorForm::Ollama => {
                let time: u128 = self.tally.made().map(|made| made.times.prompt.as_nanos()).sum();
                json!({
                    "model": self.model,
                    "embeddings": vectors,
                    "total_duration": time as u64,
                    "load_duration": 0,
                    "prompt_eval_count": tokens,
                })
            }
            VectorForm::OllamaPrompt => json!({"embedding": vectors.pop()}),
        }
    }
}

impl AnswerWriter for VectorsAnswer {
    fn take(&mut self, number: usize, happened: Happened, out: &mut String) -> Result<(), Failure> {
        match happened {
            Happened::Pooled(vector) => self.vectors[number] = vector,
            Happened::Ended(made) => {
                self.tally.end(number, *made)?;
                if self.tally.is_complete() {
                    self.is_over = true;
                    out.push_str(&self.whole().to_string());
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

/// Keeps the first numbers of a vector, with length 1 again.
fn shorten(vector: &mut Vec<f32>, dimensions: usize) {
    if dimensions >= vector.len() {
        return;
    }
    vector.truncate(dimensions);
    let length = vector.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>().sqrt();
    if length > 0.0 {
        for x in vector {
            *x = (f64::from(*x) / length) as f32;
        }
    }
}

/// The bytes of numbers, little-endian, in base64.
fn base64(vector: &[f32]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let bytes: Vec<u8> = vector.iter().flat_map(|x| x.to_le_bytes()).collect();
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let byte = |at: usize| u32::from(*group.get(at).unwrap_or(&0));
        let bits = (byte(0) << 16) | (byte(1) << 8) | byte(2);
        for digit in 0..4 {
            let index = ((bits >> (18 - 6 * digit)) & 63) as usize;
            text.push(if digit <= group.len() { char::from(DIGITS[index]) } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_encoded_as_their_bytes() {
        assert_eq!(base64(&[]), "");
        assert_eq!(base64(&[1.0]), "AACAPw==");
        assert_eq!(base64(&[1.0, -2.0]), "AACAPwAAAMA=");
        assert_eq!(base64(&[0.5, 0.25, 8.0]), "AAAAPwAAgD4AAABB");
    }

    #[test]
    fn shortened_vectors_have_length_one() {
        let mut vector = vec![0.6, 0.0, 0.8];
        shorten(&mut vector, 3);
        assert_eq!(vector, [0.6, 0.0, 0.8]);
        shorten(&mut vector, 2);
        assert_eq!(vector, [1.0, 0.0]);
        let mut zero = vec![0.0, 1.0];
        shorten(&mut zero, 1);
        assert_eq!(zero, [0.0]);
    }
}
