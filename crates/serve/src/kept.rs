//! Responses that are kept in memory for later requests, within a limit, each for the API key of
//! its request.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde_json::Value;

use crate::turn::ChatTurn;

/// Minimum bytes of a response and its conversation, without their text.
const ENTRY: usize = 1 << 10;
/// Number of copies of a response's text in memory: as a conversation, and as JSON values.
const COPIES: usize = 4;

/// The kept responses, oldest first.
#[derive(Debug)]
pub(crate) struct KeptResponses {
    /// Maximum number of bytes; 0 if no responses are kept.
    limit: usize,
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    /// Each with its bytes.
    responses: VecDeque<(KeptResponse, usize)>,
    /// Their sum.
    bytes: usize,
}

/// A response, and the conversation before it.
#[derive(Clone, Debug)]
pub(crate) struct KeptResponse {
    pub(crate) id: String,
    /// The number of the request's API key.
    pub(crate) owner: u64,
    /// The messages up to the answer.
    pub(crate) turns: Vec<ChatTurn>,
    /// The response as sent to the client; null until it is complete.
    pub(crate) response: Value,
}

impl KeptResponse {
    fn is(&self, owner: u64, id: &str) -> bool {
        self.owner == owner && self.id == id
    }

    /// Bytes that count towards the limit.
    fn bytes(&self) -> usize {
        let turns: usize = self.turns.iter().map(ChatTurn::bytes).sum();
        ENTRY + turns + COPIES * self.response.to_string().len()
    }
}

impl KeptResponses {
    /// Keeps responses of at most `limit` bytes together.
    pub(crate) fn new(limit: usize) -> KeptResponses {
        KeptResponses { limit, kept: Mutex::default() }
    }

    /// True if responses are kept.
    pub(crate) fn is_on(&self) -> bool {
        self.limit > 0
    }

    /// Keeps a response, and drops the oldest ones if necessary. An incomplete response counts too,
    /// so that conversations with pending answers stay within the limit.
    pub(crate) fn keep(&self, response: KeptResponse) {
        let bytes = response.bytes();
        if bytes > self.limit {
            return;
        }
        let mut kept = self.lock();
        while kept.bytes + bytes > self.limit {
            let Some((_, freed)) = kept.responses.pop_front() else { break };
            kept.bytes -= freed;
        }
        kept.bytes += bytes;
        kept.responses.push_back((response, bytes));
    }

    /// Completes a response of an owner, if it is still kept.
    pub(crate) fn complete(&self, owner: u64, id: &str, response: &Value) {
        let Some(begun) = self.take(owner, id) else { return };
        self.keep(KeptResponse { response: response.clone(), ..begun });
    }

    /// The complete response with this id, if it belongs to the owner.
    pub(crate) fn get(&self, owner: u64, id: &str) -> Option<KeptResponse> {
        let kept = self.lock();
        let (found, _) = kept.responses.iter().find(|(response, _)| response.is(owner, id))?;
        Some(found.clone()).filter(|found| !found.response.is_null())
    }

    /// The item with this id, if its response belongs to the owner.
    pub(crate) fn item(&self, owner: u64, id: &str) -> Option<Value> {
        let kept = self.lock();
        for (response, _) in &kept.responses {
            if response.owner == owner
                && let Some(items) = response.response["output"].as_array()
                && let Some(item) = items.iter().find(|item| item["id"] == id)
            {
                return Some(item.clone());
            }
        }
        None
    }

    /// Removes a response of an owner. Returns false if there is none with this id.
    pub(crate) fn remove(&self, owner: u64, id: &str) -> bool {
        self.take(owner, id).is_some()
    }

    fn take(&self, owner: u64, id: &str) -> Option<KeptResponse> {
        let mut kept = self.lock();
        let place = kept.responses.iter().position(|(response, _)| response.is(owner, id))?;
        let (taken, freed) = kept.responses.remove(place)?;
        kept.bytes -= freed;
        Some(taken)
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn response(id: &str, owner: u64, length: usize) -> KeptResponse {
        let turns = vec![ChatTurn::text("user", "a".repeat(length))];
        let response = json!({"id": id, "output": [{"id": format!("msg_{id}")}]});
        KeptResponse { id: id.to_owned(), owner, turns, response }
    }

    #[test]
    fn the_oldest_make_room() {
        let kept = KeptResponses::new(64 << 10);
        for number in 0..100 {
            kept.keep(response(&number.to_string(), 1, 8 << 10));
        }
        assert!(kept.lock().bytes <= 64 << 10);
        assert!(kept.get(1, "99").is_some() && kept.get(1, "0").is_none());
        // One that is not complete counts, and is not found.
        kept.keep(KeptResponse { response: Value::Null, ..response("begun", 1, 10) });
        assert!(kept.get(1, "begun").is_none());
        kept.complete(1, "begun", &json!({"output": []}));
        assert!(kept.get(1, "begun").is_some());
        kept.complete(1, "unknown", &json!({}));
        // One that is too large pushes out none.
        kept.keep(response("large", 1, 64 << 10));
        assert!(kept.get(1, "large").is_none() && kept.get(1, "99").is_some());
        let counted: usize = kept.lock().responses.iter().map(|(kept, _)| kept.bytes()).sum();
        assert_eq!(kept.lock().bytes, counted);
    }

    #[test]
    fn each_key_has_its_own() {
        let kept = KeptResponses::new(64 << 10);
        kept.keep(response("a", 1, 10));
        assert!(kept.get(2, "a").is_none() && kept.item(2, "msg_a").is_none());
        assert!(!kept.remove(2, "a"));
        assert!(kept.item(1, "msg_a").is_some() && kept.remove(1, "a"));
        assert!(kept.get(1, "a").is_none() && kept.lock().bytes == 0);
        assert!(!KeptResponses::new(0).is_on());
    }
}
