//! Waiting and running requests, for monitoring.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};
use sws::Cancel;
use sws_watch::live::LiveRequest;

use crate::connection::Client;
use crate::cost::RequestCost;
use crate::counts::Count;

/// Waiting and running requests, by number.
#[derive(Debug, Default)]
pub(crate) struct Requests(Arc<Mutex<BTreeMap<u64, Arc<RequestEntry>>>>);

/// Identity of a request.
#[derive(Clone, Debug, Default)]
pub(crate) struct RequestOrigin {
    /// Number of the request, and the id of its response.
    pub(crate) number: u64,
    pub(crate) id: String,
    pub(crate) endpoint: &'static str,
    /// The number of its API key.
    pub(crate) owner: u64,
    /// Its client, if there is a connection.
    pub(crate) client: Option<Client>,
}

/// A request.
#[derive(Debug)]
pub(crate) struct RequestEntry {
    origin: RequestOrigin,
    cancel: Cancel,
    pub(crate) cost: RequestCost,
    is_cancelled: AtomicBool,
    queued: Duration,
    texts: usize,
    /// Number of tokens of its prompts.
    prompt: usize,
    /// Number of texts with a sequence, and of texts that have ended.
    pub(crate) begun: Count,
    pub(crate) ended: Count,
    /// Prompt tokens that were not computed again, and prompt tokens that are done.
    pub(crate) known: Count,
    pub(crate) done: Count,
    /// New tokens.
    pub(crate) made: Count,
}

/// A request in the list, until this value is dropped.
#[derive(Debug)]
pub(crate) struct Listed {
    all: Arc<Mutex<BTreeMap<u64, Arc<RequestEntry>>>>,
    pub(crate) entry: Arc<RequestEntry>,
}

impl Requests {
    /// Adds a request.
    pub(crate) fn add(&self, entry: RequestEntry) -> Listed {
        let entry = Arc::new(entry);
        lock(&self.0).insert(entry.origin.number, Arc::clone(&entry));
        Listed { all: Arc::clone(&self.0), entry }
    }

    /// The requests of an owner, oldest first.
    pub(crate) fn list(&self, owner: u64, now: Duration) -> Value {
        let all = lock(&self.0);
        let mut before = 0;
        let mut list = Vec::new();
        for entry in all.values() {
            let is_waiting = entry.begun.get() == 0;
            before += usize::from(is_waiting);
            if entry.origin.owner == owner {
                list.push(entry.render(is_waiting.then_some(before), now));
            }
        }
        json!({"object": "list", "data": list})
    }

    /// The first requests of an owner, oldest first, for monitoring.
    pub(crate) fn first(&self, owner: u64, most: usize) -> Vec<LiveRequest> {
        let all = lock(&self.0);
        let mut before = 0;
        let mut list = Vec::new();
        for entry in all.values() {
            let is_waiting = entry.begun.get() == 0;
            before += usize::from(is_waiting);
            if entry.origin.owner == owner && list.len() < most {
                list.push(entry.as_request(is_waiting.then_some(before)));
            }
        }
        list
    }

    /// Cancels a request of an owner. Returns false if there is no such request.
    pub(crate) fn cancel(&self, owner: u64, id: &str) -> bool {
        let found = lock(&self.0)
            .values()
            .find(|entry| entry.origin.owner == owner && entry.origin.id == id)
            .map(Arc::clone);
        if let Some(entry) = &found {
            entry.is_cancelled.store(true, Ordering::Relaxed);
            entry.cancel.cancel();
        }
        found.is_some()
    }
}

impl RequestEntry {
    /// A request for texts with `prompt` tokens in all prompts.
    pub(crate) fn new(
        origin: RequestOrigin,
        cancel: Cancel,
        cost: RequestCost,
        queued: Duration,
        prompts: &[usize],
    ) -> RequestEntry {
        RequestEntry {
            origin,
            cancel,
            cost,
            is_cancelled: AtomicBool::new(false),
            queued,
            texts: prompts.len(),
            prompt: prompts.iter().sum(),
            begun: Count::default(),
            ended: Count::default(),
            known: Count::default(),
            done: Count::default(),
            made: Count::default(),
        }
    }

    /// True if the request was cancelled by its id.
    pub(crate) fn is_cancelled(&self) -> bool {
        self.is_cancelled.load(Ordering::Relaxed)
    }

    /// The client that waits for the response, if there is a connection.
    pub(crate) fn client(&self) -> Option<Client> {
        self.origin.client.clone()
    }

    /// Id and owner of the request.
    pub(crate) fn origin(&self) -> (&str, u64) {
        (&self.origin.id, self.origin.owner)
    }

    /// State of the request in a word.
    fn state(&self, place: Option<usize>) -> &'static str {
        match (place, self.made.get()) {
            (Some(_), _) => "waiting",
            (None, 0) => "prompt",
            (None, _) => "generation",
        }
    }

    /// The request for monitoring, without its text.
    fn as_request(&self, place: Option<usize>) -> LiveRequest {
        LiveRequest {
            id: self.origin.id.clone(),
            endpoint: self.origin.endpoint.to_owned(),
            state: self.state(place).to_owned(),
            place,
            queued: self.queued.as_secs_f64(),
            prompt: self.prompt as u64,
            done: self.done.get(),
            made: self.made.get(),
        }
    }

    /// State of the request, without its text. `place` is its place in the queue.
    fn render(&self, place: Option<usize>, now: Duration) -> Value {
        let state = self.state(place);
        json!({
            "id": self.origin.id,
            "endpoint": self.origin.endpoint,
            "state": state,
            "queue_position": place,
            "age_seconds": now.saturating_sub(self.queued).as_secs_f64(),
            "texts": self.texts,
            "texts_done": self.ended.get(),
            "prompt_tokens": self.prompt,
            "prompt_tokens_done": self.done.get(),
            "cached_tokens": self.known.get(),
            "completion_tokens": self.made.get(),
        })
    }
}

impl Drop for Listed {
    fn drop(&mut self) {
        lock(&self.all).remove(&self.entry.origin.number);
    }
}

fn lock(
    all: &Mutex<BTreeMap<u64, Arc<RequestEntry>>>,
) -> MutexGuard<'_, BTreeMap<u64, Arc<RequestEntry>>> {
    all.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(number: u64, owner: u64) -> RequestEntry {
        let id = format!("req-{number}");
        let origin = RequestOrigin { number, id, owner, ..RequestOrigin::default() };
        let cancel = Cancel::new();
        let queued = Duration::from_secs(number);
        RequestEntry::new(origin, cancel, RequestCost::default(), queued, &[3, 4])
    }

    #[test]
    fn owners_see_and_cancel_their_own() {
        let requests = Requests::default();
        let first = requests.add(entry(1, 7));
        let second = requests.add(entry(2, 8));
        let third = requests.add(entry(3, 7));
        first.entry.begun.add(1);
        let list = requests.list(7, Duration::from_secs(5));
        let ids: Vec<&str> =
            list["data"].as_array().unwrap().iter().map(|e| e["id"].as_str().unwrap()).collect();
        assert_eq!(ids, ["req-1", "req-3"]);
        assert_eq!(
            (&list["data"][0]["state"], &list["data"][1]["state"]),
            (&json!("prompt"), &json!("waiting"))
        );
        assert_eq!(list["data"][1]["queue_position"], 2);
        assert_eq!(list["data"][1]["age_seconds"], 2.0);
        assert_eq!(list["data"][0]["prompt_tokens"], 7);
        assert!(!requests.cancel(7, "req-2") && !second.entry.is_cancelled());
        assert!(requests.cancel(7, "req-3") && third.entry.is_cancelled());
        assert!(third.entry.cancel.is_cancelled() && !first.entry.cancel.is_cancelled());
        drop(first);
        assert!(!requests.cancel(7, "req-1"));
    }
}
