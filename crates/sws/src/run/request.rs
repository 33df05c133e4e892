//! Requests: a text to continue, with options.

use sws_text::GenerationOptions;

/// A text to continue, with options. A string becomes a request with the defaults.
///
/// ```
/// use sws::Request;
///
/// let request = Request::from("The wolf").seed(7).max_new_tokens(40);
/// assert_eq!(request.options.seed, Some(7));
/// ```
#[derive(Clone, Debug)]
pub struct Request {
    /// The text to continue, as text or as tokens.
    pub prompt: Prompt,
    /// Options that override the defaults of the model.
    pub options: GenerationOptions,
}

/// The prompt of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Prompt {
    /// Text.
    Text(String),
    /// Token ids.
    Tokens(Vec<u32>),
}

impl Request {
    /// Sets the random seed. The same seed gives the same text on every machine.
    pub fn seed(mut self, seed: u64) -> Request {
        self.options.seed = Some(seed);
        self
    }

    /// Sets the maximum number of new tokens.
    pub fn max_new_tokens(mut self, tokens: usize) -> Request {
        self.options.max_new_tokens = Some(tokens);
        self
    }

    /// Sets the sampling temperature; 0 always takes the most probable token.
    pub fn temperature(mut self, temperature: f32) -> Request {
        self.options.temperature = Some(temperature);
        self
    }

    /// Adds a stop string: the text ends before it.
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
