//! Any bytes as a request, to each endpoint that reads one.

use serde_json::Value;

use crate::offline;

const PATHS: [&str; 8] = [
    "/v1/completions",
    "/v1/chat/completions",
    "/v1/messages",
    "/v1/responses",
    "/v1/messages/count_tokens",
    "/apply-template",
    "/tokenize",
    "/detokenize",
];
/// Bytes of a request.
const MOST: usize = 4 << 10;

/// The first byte chooses the endpoint. Returns true for a request that is answered.
pub(crate) fn check(data: &[u8]) -> bool {
    let Some((path, body)) = data.split_first().filter(|(_, body)| body.len() <= MOST) else {
        return false;
    };
    let answered = offline::post(PATHS[usize::from(*path) % PATHS.len()], body);
    if answered.status != 200 {
        return false;
    }
    if serde_json::from_slice::<Value>(&answered.body).is_err() {
        for (_, data) in offline::events(&answered.body) {
            let is_json = serde_json::from_str::<Value>(data).is_ok();
            assert!(is_json || data == "[DONE]", "{data}");
        }
    }
    true
}
