//! Requests: a text to continue, and how.

use sws_model::text::GenerationOptions;

/// A text to continue, and how. A string is one with the defaults.
///
/// ```
/// use sws::Request;
///
/// let request = Request::from("The wolf").seed(7).max_new_tokens(40);
/// assert_eq!(request.options.seed, Some(7));
/// ```
#[derive(Clone, Debug)]
pub struct Request {
    /// The text.
    pub prompt: Prompt,
    /// Options that differ from the defaults of the model.
    pub options: GenerationOptions,
}

/// The beginning of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Prompt {
    /// As text.
    Text(String),
    /// As ids of tokens.
    Tokens(Vec<u32>),
}

impl Request {
    /// The same seed gives the same text, on every machine.
    pub fn seed(mut self, seed: u64) -> Request {
        self.options.seed = Some(seed);
        self
    }

    /// New tokens at most.
    pub fn max_new_tokens(mut self, tokens: usize) -> Request {
        self.options.max_new_tokens = Some(tokens);
        self
    }

    /// The freedom of choice; 0 takes the likeliest token, always.
    pub fn temperature(mut self, temperature: f32) -> Request {
        self.options.temperature = Some(temperature);
        self
    }

    /// Ends the text before this string, and before others that were given.
    pub fn stop(mut self, text: impl Into<String>) -> Request {
        self.options.stop.push(text.into());
        self
    }
}

impl From<Prompt> for Request {
    fn from(prompt: Prompt) -> Request {
        Request { prompt, options: GenerationOptions::default() }
    }
}

impl From<&str> for Request {
    fn from(text: &str) -> Request {
        Prompt::Text(text.to_owned()).into()
    }
}

impl From<String> for Request {
    fn from(text: String) -> Request {
        Prompt::Text(text).into()
    }
}

impl From<Vec<u32>> for Request {
    fn from(tokens: Vec<u32>) -> Request {
        Prompt::Tokens(tokens).into()
    }
}
