//! Refusals and failures, in the shape of each interface.

use axum::body::Body;
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use axum::http::{Response, StatusCode};
use serde_json::{Value, json};
use sws_model::ForwardError;

use crate::ServerLimits;

/// Maximum number of characters of a message, and of a field's name.
const MESSAGE: usize = 600;
const NAME: usize = 64;

/// An interface, which determines the format of errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dialect {
    OpenAi,
    Anthropic,
    Ollama,
}

impl Dialect {
    /// The interface at a path.
    fn of(path: &str) -> Dialect {
        match path {
            _ if path.starts_with("/v1/messages") => Dialect::Anthropic,
            _ if path.starts_with("/api/") => Dialect::Ollama,
            _ => Dialect::OpenAi,
        }
    }
}

/// A refusal or a failure: a status, and one sentence.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub(crate) status: StatusCode,
    /// Type of the error in OpenAI's words.
    kind: &'static str,
    code: Option<&'static str>,
    /// Name of the refused field.
    field: Option<String>,
    pub(crate) message: String,
    /// Seconds after which the client may retry.
    retry_after: Option<u32>,
    /// Sizes, if a prompt is too long.
    too_long: Option<TooLong>,
    /// True if the request can be prepared once memory was taken back from experts.
    is_until_taken_back: bool,
}

/// Number of tokens of a prompt, and number of tokens that the context has room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct TooLong {
    prompt: usize,
    context: usize,
}

impl Failure {
    fn new(status: StatusCode, kind: &'static str, message: impl Into<String>) -> Failure {
        let code = None;
        let field = None;
        let retry_after = None;
        let too_long = None;
        let is_until_taken_back = false;
        // The message stays a single line, whatever the client wrote.
        let message = shortened(&message.into(), MESSAGE).replace(char::is_control, " ");
        Failure { status, kind, code, field, message, retry_after, too_long, is_until_taken_back }
    }

    /// A request that cannot be understood or fulfilled.
    pub(crate) fn invalid(message: impl Into<String>) -> Failure {
        Failure::new(StatusCode::BAD_REQUEST, "invalid_request_error", message)
    }

    /// A refused value of a field.
    pub(crate) fn field(name: &str, message: impl Into<String>) -> Failure {
        Failure { field: Some(shortened(name, NAME)), ..Failure::invalid(message) }
    }

    /// A known field that is not supported.
    pub(crate) fn unsupported(name: &str, message: impl Into<String>) -> Failure {
        Failure { code: Some("unsupported_value"), ..Failure::field(name, message) }
    }

    pub(crate) fn too_large(limit: usize) -> Failure {
        let message =
            format!("the request has more than {limit} bytes; send less, or raise --body");
        Failure::new(StatusCode::PAYLOAD_TOO_LARGE, "invalid_request_error", message)
    }

    /// A request that the HTTP library could not read, and answers with this status.
    pub(crate) fn unread(status: StatusCode) -> Failure {
        let message = match status {
            StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE => {
                "the header of the request has too many bytes or lines; send a smaller one"
            }
            _ => "the request is not valid HTTP",
        };
        Failure::new(status, "invalid_request_error", message)
    }

    /// A request whose body arrives too slowly, or not at all.
    pub(crate) fn slow(limits: &ServerLimits) -> Failure {
        let message = format!(
            "less than {} bytes of the request arrived in {} seconds; send it again, as a whole",
            limits.least_bytes(),
            limits.body_time.as_secs_f32(),
        );
        Failure::new(StatusCode::REQUEST_TIMEOUT, "invalid_request_error", message)
    }

    /// A request with a body for which there is no memory.
    pub(crate) fn crowded() -> Failure {
        Failure::unavailable(
            "too many large requests arrive at the same time, or they arrive too slowly; send this one again",
        )
    }

    pub(crate) fn without_key() -> Failure {
        let message = "the API key is missing or wrong; send it as `Authorization: Bearer KEY` or `x-api-key: KEY`";
        let failure = Failure::new(StatusCode::UNAUTHORIZED, "authentication_error", message);
        Failure { code: Some("invalid_api_key"), ..failure }
    }

    pub(crate) fn forbidden(message: impl Into<String>) -> Failure {
        Failure::new(StatusCode::FORBIDDEN, "permission_error", message)
    }

    pub(crate) fn no_route() -> Failure {
        let message = "there is nothing at this address; GET /openapi.json lists the endpoints";
        Failure::new(StatusCode::NOT_FOUND, "not_found_error", message)
    }

    /// An unknown id.
    pub(crate) fn not_found(message: impl Into<String>) -> Failure {
        Failure::new(StatusCode::NOT_FOUND, "not_found_error", message)
    }

    pub(crate) fn no_request() -> Failure {
        let message = "no request with this id waits or runs; /v1/requests lists them";
        Failure::new(StatusCode::NOT_FOUND, "not_found_error", message)
    }

    /// A request that was cancelled by its id.
    pub(crate) fn cancelled() -> Failure {
        let failure =
            Failure::new(StatusCode::CONFLICT, "cancelled_error", "the request was cancelled");
        Failure { code: Some("cancelled"), ..failure }
    }

    pub(crate) fn no_method() -> Failure {
        let message = "this endpoint has another method; GET /openapi.json lists the endpoints";
        Failure::new(StatusCode::METHOD_NOT_ALLOWED, "invalid_request_error", message)
    }

    pub(crate) fn no_model(asked: &str, names: &[&str]) -> Failure {
        let asked: String = asked.chars().take(100).collect();
        let message = format!("there is no model `{asked}` here; there is {}", names.join(", "));
        let failure = Failure::new(StatusCode::NOT_FOUND, "not_found_error", message);
        Failure { code: Some("model_not_found"), field: Some("model".to_owned()), ..failure }
    }

    pub(crate) fn not_offered(message: &str) -> Failure {
        Failure::new(StatusCode::NOT_IMPLEMENTED, "not_supported_error", message)
    }

    pub(crate) fn no_tokenizer() -> Failure {
        let message = "this model has no tokenizer.json; send token ids to /v1/completions";
        Failure::not_offered(message)
    }

    /// Too many waiting requests.
    pub(crate) fn busy(message: impl Into<String>) -> Failure {
        let failure = Failure::new(StatusCode::TOO_MANY_REQUESTS, "rate_limit_error", message);
        Failure { code: Some("queue_full"), retry_after: Some(10), ..failure }
    }

    /// A request that has waited too long.
    pub(crate) fn waited() -> Failure {
        let failure = Failure::busy("other requests took too long; try again later");
        Failure { code: Some("queue_timeout"), ..failure }
    }

    /// A request whose memory is lent to experts. It is prepared again once that was taken back.
    pub(crate) fn until_taken_back() -> Failure {
        Failure { is_until_taken_back: true, ..Failure::waited() }
    }

    /// True for [`Failure::until_taken_back`].
    pub(crate) fn is_until_taken_back(&self) -> bool {
        self.is_until_taken_back
    }

    /// A server that is starting or stopping.
    pub(crate) fn unavailable(message: &str) -> Failure {
        let failure = Failure::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable_error", message);
        Failure { retry_after: Some(5), ..failure }
    }

    /// An internal failure of the server.
    pub(crate) fn server(message: impl Into<String>) -> Failure {
        Failure::new(StatusCode::INTERNAL_SERVER_ERROR, "server_error", message)
    }

    /// The failure of a text, caused by the request or by the server.
    pub(crate) fn of(error: &sws::Error) -> Failure {
        let cause = match error {
            // A structure that turned out to be too complex.
            sws::Error::Constraint(cause) => return Failure::invalid(cause.to_string()),
            sws::Error::Forward(cause) => Some(cause),
            sws::Error::Model { cause, .. } => cause.downcast_ref(),
            _ => None,
        };
        match cause {
            Some(ForwardError::ContextFull { used, asked, limit }) => {
                let too_long = TooLong { prompt: used + asked, context: *limit };
                Failure::too_long(too_long)
            }
            Some(ForwardError::NoTokens) => Failure::invalid("the prompt is empty; send some text"),
            Some(cause @ ForwardError::UnknownToken { .. }) => Failure::invalid(cause.to_string()),
            _ => Failure::server(error.to_string()),
        }
    }

    /// A prompt that is longer than the context, with a message that clients recognise.
    fn too_long(too_long: TooLong) -> Failure {
        let TooLong { prompt, context } = too_long;
        let message = format!(
            "the prompt has {prompt} tokens, and this model's maximum context length is {context} tokens; shorten the prompt, or start the server with a larger --context"
        );
        let failure = Failure::invalid(message);
        Failure { code: Some("context_length_exceeded"), too_long: Some(too_long), ..failure }
    }

    /// The error in OpenAI's format.
    pub(crate) fn json(&self) -> Value {
        let Failure { kind, code, field, message, .. } = self;
        let mut error = json!({"message": message, "type": kind, "param": field, "code": code});
        if let Some(TooLong { prompt, context }) = self.too_long {
            // These fields have the names of llama.cpp's server.
            error["n_prompt_tokens"] = prompt.into();
            error["n_ctx"] = context.into();
        }
        json!({ "error": error })
    }

    /// The error in Anthropic's format. `id` is that of the request.
    pub(crate) fn anthropic(&self, id: Option<&str>) -> Value {
        let kind = match self.status.as_u16() {
            408 => "timeout_error",
            413 => "request_too_large",
            429 => "rate_limit_error",
            503 => "overloaded_error",
            500.. => "api_error",
            _ => self.kind,
        };
        let message = match self.too_long {
            Some(TooLong { prompt, context }) => format!(
                "prompt is too long: {prompt} tokens > {context} maximum; shorten it, or start the server with a larger --context"
            ),
            None => self.message.clone(),
        };
        let mut error = json!({"type": "error", "error": {"type": kind, "message": message}});
        if let Some(id) = id {
            error["request_id"] = id.into();
        }
        error
    }

    /// The error in an interface's format, for the middle of a stream.
    pub(crate) fn shaped(&self, dialect: Dialect) -> Value {
        match dialect {
            Dialect::OpenAi => self.json(),
            Dialect::Anthropic => self.anthropic(None),
            Dialect::Ollama => self.ollama(),
        }
    }

    /// The error in Ollama's format.
    pub(crate) fn ollama(&self) -> Value {
        json!({"error": self.message})
    }

    /// The response that reports the failure. [`Failure::shape`] gives it a body.
    pub(crate) fn response(&self) -> Response<Body> {
        let mut response = respond(self.status, &Value::Null);
        response.extensions_mut().insert(self.clone());
        let headers = response.headers_mut();
        if let Some(seconds) = self.retry_after {
            headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        // Retrying any other refused request is pointless.
        let again = matches!(self.status.as_u16(), 408 | 429 | 503);
        let again = HeaderValue::from_static(if again { "true" } else { "false" });
        headers.insert("x-should-retry", again);
        response
    }

    /// Writes the body of a response that reports a failure, in the format of the interface at the
    /// request's path. `id` is that of the request.
    pub(crate) fn shape(response: &mut Response<Body>, path: &str, id: &str) {
        let Some(failure) = response.extensions_mut().remove::<Failure>() else { return };
        let shaped = match Dialect::of(path) {
            Dialect::Anthropic => failure.anthropic(Some(id)),
            dialect => failure.shaped(dialect),
        };
        *response.body_mut() = Body::from(shaped.to_string());
        // The router has set the length of the previous body.
        response.headers_mut().remove(CONTENT_LENGTH);
    }
}

/// The text, cut to `most` characters if necessary: its beginning and its end.
pub(crate) fn shortened(text: &str, most: usize) -> String {
    let characters = text.chars().count();
    if characters <= most {
        return text.to_owned();
    }
    let end = most / 4;
    let begin = text.chars().take(most - end - 1);
    begin.chain(['…']).chain(text.chars().skip(characters - end)).collect()
}

/// A response with JSON.
pub(crate) fn respond(status: StatusCode, json: &Value) -> Response<Body> {
    let mut response = Response::new(Body::from(json.to_string()));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prompt_that_does_not_fit_is_the_callers_mistake() {
        let error = ForwardError::ContextFull { used: 0, asked: 30, limit: 16 };
        let failure = Failure::of(&error.into());
        assert_eq!(failure.status, StatusCode::BAD_REQUEST);
        assert_eq!(failure.json()["error"]["code"], "context_length_exceeded");
        assert_eq!(failure.json()["error"]["n_prompt_tokens"], 30);
        assert!(failure.message.contains("maximum context length is 16 tokens"));
        let message = failure.anthropic(None)["error"]["message"].clone();
        assert!(
            message.as_str().unwrap().starts_with("prompt is too long: 30 tokens > 16 maximum")
        );
        let response = failure.response();
        assert_eq!(response.headers()["x-should-retry"], "false");
    }

    #[test]
    fn messages_are_of_bounded_length() {
        assert_eq!(shortened("abcdefgh", 8), "abcdefgh");
        assert_eq!(shortened("äbcdefghijkl", 8), "äbcde…kl");
        let long = "\u{1}\n\"".repeat(1 << 20);
        let failure = Failure::field(&long, format!("{long} is not a number"));
        assert!(failure.message.ends_with(" is not a number") && !failure.message.contains('\n'));
        assert!(failure.json().to_string().len() < 4 << 10, "{failure:?}");
    }

    #[test]
    fn each_interface_has_its_shape() {
        let busy = Failure::busy("too many");
        assert_eq!(busy.json()["error"]["type"], "rate_limit_error");
        assert_eq!(busy.anthropic(None)["request_id"], Value::Null);
        assert_eq!(busy.anthropic(Some("req-1"))["request_id"], "req-1");
        let response = busy.response();
        assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(response.headers()[RETRY_AFTER], "10");
        assert_eq!(Dialect::of("/v1/messages/batches"), Dialect::Anthropic);
        assert_eq!(Dialect::of("/v1/chat/completions"), Dialect::OpenAi);
        assert_eq!(Dialect::of("/api/chat"), Dialect::Ollama);
        assert_eq!(busy.ollama(), json!({"error": "too many"}));
    }
}
