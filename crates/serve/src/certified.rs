//! Certificates of answers, which `sws certify` checks.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::Value;
use sws::BatchRequest;
use sws_engine::{Certificate, Witness};
use sws_text::Sampling;
use tokio::sync::OwnedSemaphorePermit;

use crate::app::App;
use crate::failure::Failure;
use crate::fields::{EXTENSION, SamplingFields, uncertified};
use crate::served::Served;
use crate::sizes::{CERTIFICATE_UNIT, certificate_bytes};

/// Bytes of a step of a certificate besides its routes.
const STEP: usize = 160;

/// An answer for which a certificate was requested.
pub(crate) struct Certified {
    witness: Arc<Mutex<Witness>>,
    prompt: Vec<u32>,
    sampling: Sampling,
    served: Arc<Served>,
    _memory: OwnedSemaphorePermit,
}

impl fmt::Debug for Certified {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Certified").finish_non_exhaustive()
    }
}

impl Certified {
    /// Makes a witness observe the text of a request for a certificate.
    fn begin(
        app: &App,
        served: &Arc<Served>,
        texts: &mut [BatchRequest],
    ) -> Result<Certified, Failure> {
        let [text] = texts else {
            return Err(uncertified(
                "a certificate is of one text; ask for one prompt, with n = 1",
            ));
        };
        let has_dry = text.generation.sampling.dry.is_some();
        if text.constraint.is_some() || !text.bias.is_empty() || text.prompt_ranks || has_dry {
            return Err(uncertified(
                "a certificate is of a text without structure, logit_bias, DRY or echo with logprobs; leave those out",
            ));
        }
        let spec = served.model.spec();
        let room = served.limit.saturating_sub(text.tokens.len());
        let new = text.generation.max_new_tokens.unwrap_or(room).min(room);
        let routes = 4 * spec.routings().count() * spec.max_top_k();
        let bytes = (text.tokens.len() + new).saturating_mul(routes + STEP);
        let most = certificate_bytes(app.config.limits.body);
        let permits = u32::try_from(bytes.div_ceil(CERTIFICATE_UNIT)).unwrap_or(u32::MAX);
        if bytes > most {
            return Err(Failure::field(
                EXTENSION,
                format!(
                    "the certificate would have {bytes} bytes of {most}; ask for fewer tokens, raise --body, or use `sws run --certify`",
                ),
            ));
        }
        let memory = Arc::clone(&app.certificates).try_acquire_many_owned(permits);
        let memory = memory.map_err(|_| {
            Failure::busy("certificates of other requests are being made; try again later")
        })?;
        let witness = Arc::new(Mutex::new(Witness::new(spec, &text.tokens)));
        text.witness = Some(Arc::clone(&witness));
        Ok(Certified {
            witness,
            prompt: text.tokens.clone(),
            sampling: text.generation.sampling.clone(),
            served: Arc::clone(served),
            _memory: memory,
        })
    }

    /// The certificate of the text with these tokens.
    pub(crate) fn json(&self, tokens: &[u32]) -> Value {
        let Certified { witness, prompt, sampling, served, .. } = self;
        let witness = witness.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let certificate = Certificate::new(
            served.model.manifest(),
            served.identity.activations,
            served.identity.kv,
            sampling.clone(),
            prompt,
            tokens,
            witness,
        );
        // Serialising plain data does not fail.
        serde_json::to_value(&certificate).unwrap_or_default()
    }
}

/// Prepares the certificate, if a request asks for one.
pub(crate) fn certified(
    app: &App,
    served: &Arc<Served>,
    sampling: &SamplingFields,
    texts: &mut [BatchRequest],
) -> Result<Option<Certified>, Failure> {
    sampling.certificate.then(|| Certified::begin(app, served, texts)).transpose()
}
