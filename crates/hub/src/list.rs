//! Asks the hub for the files of a model.

use crate::client::RequestSubject;
use crate::http::{HttpFailure, escaped};
use crate::{Client, HubError, Listing, ModelId};

/// Maximum bytes of a listing. One file takes about 200.
const MAX_LISTING: u64 = 64 << 20;

impl Client {
    /// Lists the files of a model at a branch, a tag or a commit.
    pub fn list(&self, id: &ModelId, revision: &str) -> Result<Listing, HubError> {
        self.list_while(&HttpFailure::may_pass, id, revision)
    }

    /// Like [`list`](Self::list), with a single attempt unless the hub asks to wait. For a name
    /// that may not be a model's.
    pub fn list_once(&self, id: &ModelId, revision: &str) -> Result<Listing, HubError> {
        self.list_while(&HttpFailure::asks_to_wait, id, revision)
    }

    fn list_while(
        &self,
        may_pass: &dyn Fn(&HttpFailure) -> bool,
        id: &ModelId,
        revision: &str,
    ) -> Result<Listing, HubError> {
        let path = format!(
            "/api/models/{id}/revision/{}?blobs=true",
            escaped(revision).replace('/', "%2F")
        );
        let about = RequestSubject { id, revision, file: None, begun: false };
        let bytes =
            self.json(&path, MAX_LISTING, may_pass).map_err(|e| self.explained(e, &about))?;
        Listing::from_json(id, &format!("{}/api/models/{id}", self.endpoint()), &bytes)
    }
}
