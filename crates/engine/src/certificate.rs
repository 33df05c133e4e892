//! Certificates: the inputs of an answer and hashes of its intermediate results, so that anyone can
//! compute it again and compare every bit.

use std::fmt;

use serde::{Deserialize, Serialize};
use sws_format::{Manifest, ModelIdentity, Pass, Span};
use sws_kernels::Activations;
use sws_model::{CausalLm, ForwardError, KvPrecision, ModelSpec, Observer, Routed, SourceError};
use sws_text::{SAMPLER, SampleError, Sampler, Sampling};

/// Version of the file format. Other versions are refused.
const FORMAT: &str = "sws-certificate-1";
/// Version of the program. Another version may compute other bits.
const VERSION: &str = env!("CARGO_PKG_VERSION");
/// Sampler of certificates that do not name one.
const FIRST_SAMPLER: &str = "uniform-1";
/// Version of the arithmetic of certificates that do not name one.
const FIRST_ARITHMETIC: u32 = 1;

/// Inputs of an answer, and a chain of hashes over its routes and logits.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Certificate {
    format: String,
    /// Version of the program.
    version: String,
    model: ModelIdentity,
    /// Encoding of the shards; `None` for a checkpoint read in place.
    encoding: Option<String>,
    /// Precision of the KV cache.
    kv: String,
    /// Version of the sampler, which maps a seed to a text.
    #[serde(default = "first_sampler")]
    sampler: String,
    /// Version of the arithmetic that last changed the bits of this model in this encoding. Omitted
    /// if it is the first version.
    #[serde(default = "first_arithmetic", skip_serializing_if = "is_first")]
    arithmetic: u32,
    /// Kind of activations of products. Omitted if products use unrounded activations.
    #[serde(default = "as_they_are", skip_serializing_if = "are_as_they_are")]
    activations: String,
    sampling: Sampling,
    prompt: Vec<u32>,
    /// The answer.
    tokens: Vec<u32>,
    /// One step for each token of the answer.
    steps: Vec<CertifiedStep>,
    /// Hash over all other fields.
    seal: String,
}

/// The passes up to the logits of one token.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CertifiedStep {
    /// Experts of each token in each layer with experts, as four hexadecimal digits each.
    routes: String,
    /// blake3 over the previous link, the routes and the logits.
    chain: String,
}

/// Result of a replay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CertificateOutcome {
    /// All steps agree bit for bit.
    Agrees {
        /// Number of steps compared.
        steps: usize,
    },
    /// A step differs.
    Differs {
        /// The first step that differs. Step 0 is the prompt's.
        step: usize,
        /// The first difference in it.
        what: Difference,
    },
    /// The caller stopped the replay before its end.
    Stopped,
}

/// Kind of the first difference in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Difference {
    /// A router has chosen other experts.
    Routes,
    /// The same experts were chosen, but the logits differ.
    Logits,
    /// The logits agree, but another token was sampled.
    Token,
}

/// Reasons why a certificate cannot be checked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum CertificateError {
    /// The file is not a certificate.
    #[error("this is not a certificate ({0}); make one with `sws run --certify FILE`")]
    Damaged(String),
    /// The certificate was changed after it was made.
    #[error("the certificate was changed after it was made; get it again from where it came")]
    Changed,
    /// The certificate was made with another sampler.
    #[error(
        "the certificate is of the sampler {found} and this is {SAMPLER}, with which a seed gives another text; make it again with `sws run --certify FILE`, or check it with the program that made it"
    )]
    Sampler {
        /// Sampler of the certificate.
        found: String,
    },
    /// The certificate was made by another version of the program.
    #[error(
        "the certificate was made by version {found} and this is {VERSION}, whose bits may differ; use that version"
    )]
    Version {
        /// Version of the certificate.
        found: String,
    },
    /// The certificate is about another model.
    #[error(
        "the certificate is about another model ({expected}) than this one ({found}); name that one"
    )]
    Foreign {
        /// Model of the certificate.
        expected: String,
        found: String,
    },
    /// The certificate is about the same model in another encoding.
    #[error(
        "the certificate is about the model in {expected} and this one is in {found}; name that one"
    )]
    Encoding {
        /// Encoding of the certificate.
        expected: String,
        /// Encoding of this model.
        found: String,
    },
    /// The certificate was made with another definition of products.
    #[error(
        "the certificate is of version {expected} of the arithmetic and this program computes the model by version {found}, whose bits differ; make it again with `sws run --certify FILE`, or check it with the program that made it"
    )]
    Arithmetic {
        /// Version of the certificate.
        expected: u32,
        /// Version that this program computes the model by.
        found: u32,
    },
    /// The certificate was made with another kind of activations.
    #[error(
        "the certificate is of {expected} activations and this run has {found}, whose bits differ; give --activations {expected}"
    )]
    Activations {
        /// Activations of the certificate.
        expected: String,
        /// Activations of this run.
        found: Activations,
    },
    /// The model could not be run.
    #[error(transparent)]
    Forward(#[from] ForwardError),
    /// No token could be sampled.
    #[error(transparent)]
    Sample(#[from] SampleError),
}

impl Certificate {
    /// Creates the certificate of the answer `tokens`, whose generation `witness` has observed.
    pub fn new(
        manifest: &Manifest,
        activations: Activations,
        kv: KvPrecision,
        sampling: Sampling,
        prompt: &[u32],
        tokens: &[u32],
        witness: Witness,
    ) -> Certificate {
        let mut certificate = Certificate {
            format: FORMAT.to_owned(),
            version: VERSION.to_owned(),
            model: manifest.model.clone(),
            encoding: encoding(manifest),
            kv: kv.name().to_owned(),
            sampler: SAMPLER.to_owned(),
            arithmetic: manifest.arithmetic(),
            activations: activations.name().to_owned(),
            sampling,
            prompt: prompt.to_vec(),
            tokens: tokens.to_vec(),
            steps: witness.steps,
            seal: String::new(),
        };
        certificate.seal();
        certificate
    }

    /// Seals the current contents. The seal detects accidental changes; only a replay detects a
    /// forgery.
    pub fn seal(&mut self) {
        self.seal = self.hash();
    }

    /// Parses a certificate and checks its seal and versions.
    pub fn parse(json: &[u8]) -> Result<Certificate, CertificateError> {
        let certificate: Certificate = serde_json::from_slice(json).map_err(damaged)?;
        if certificate.format != FORMAT {
            return Err(damaged("it is in another format"));
        }
        // Checked before the seal: a file without a sampler was sealed without that field.
        if certificate.sampler != SAMPLER {
            return Err(CertificateError::Sampler { found: render(&certificate.sampler) });
        }
        if certificate.hash() != certificate.seal {
            return Err(CertificateError::Changed);
        }
        if certificate.version != VERSION {
            return Err(CertificateError::Version { found: render(&certificate.version) });
        }
        if certificate.prompt.is_empty() || certificate.tokens.len() != certificate.steps.len() {
            return Err(damaged("it does not have a step for every token"));
        }
        if certificate.kv().is_none() {
            return Err(damaged("it names an unknown precision of keys and values"));
        }
        Ok(certificate)
    }

    /// Returns the contents of a certificate file.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("plain data") + "\n"
    }

    /// Returns an error if the certificate is not about this model in this encoding, or of other
    /// activations, or if this program computes the model by another version of the arithmetic.
    pub fn check(
        &self,
        manifest: &Manifest,
        activations: Activations,
    ) -> Result<(), CertificateError> {
        let found = &manifest.model;
        let expected = &self.model;
        if found != expected {
            let expected = name_of_model(expected);
            let found = name_of_model(found);
            return Err(CertificateError::Foreign { expected, found });
        }
        let found = encoding(manifest);
        if found != self.encoding {
            let expected = name_of_encoding(self.encoding.as_deref());
            let found = name_of_encoding(found.as_deref());
            return Err(CertificateError::Encoding { expected, found });
        }
        let expected = self.arithmetic;
        let found = manifest.arithmetic();
        if found != expected {
            return Err(CertificateError::Arithmetic { expected, found });
        }
        if self.activations != activations.name() {
            let expected = render(&self.activations);
            return Err(CertificateError::Activations { expected, found: activations });
        }
        Ok(())
    }

    /// Precision of the KV cache; `None` for an unknown one.
    pub fn kv(&self) -> Option<KvPrecision> {
        KvPrecision::ALL.into_iter().find(|kv| kv.name() == self.kv)
    }

    /// The prompt.
    pub fn prompt(&self) -> &[u32] {
        &self.prompt
    }

    /// The answer.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Computes the answer again and compares. Before each step, `step` gets the number of steps
    /// done; the replay stops if it returns false.
    pub fn replay(
        &self,
        spec: &ModelSpec,
        lm: &mut dyn CausalLm,
        step: &mut dyn FnMut(usize) -> bool,
    ) -> Result<CertificateOutcome, CertificateError> {
        let mut witness = Witness::new(spec, &self.prompt);
        let mut sampler = Sampler::new(self.sampling.clone(), spec.vocab);
        sampler.prompt(&self.prompt)?;
        let mut next = self.prompt.clone();
        for (number, (expected, &token)) in self.steps.iter().zip(&self.tokens).enumerate() {
            if !step(number) {
                return Ok(CertificateOutcome::Stopped);
            }
            let first = lm.len();
            let mut logits = lm.observed(&next, &mut witness)?.to_vec();
            witness.logits(first + next.len() - 1, &logits);
            let found = witness.steps.last().expect("logits end a step");
            let what = if found.routes != expected.routes {
                Difference::Routes
            } else if found.chain != expected.chain {
                Difference::Logits
            } else if sampler.sample(&mut logits, lm.len())? != token {
                Difference::Token
            } else {
                next = vec![token];
                continue;
            };
            return Ok(CertificateOutcome::Differs { step: number, what });
        }
        Ok(CertificateOutcome::Agrees { steps: self.steps.len() })
    }

    fn hash(&self) -> String {
        let unsealed = Certificate { seal: String::new(), ..self.clone() };
        blake3::hash(unsealed.to_json().as_bytes()).to_hex().to_string()
    }
}

/// Observes the generation of an answer, and adds the routes and logits of each step to the chain.
#[derive(Clone, Debug)]
pub struct Witness {
    /// Index of each visit of a layer among those with experts.
    places: Vec<Option<usize>>,
    top_k: usize,
    /// Number of experts of a token in all layers.
    row: usize,
    /// Position of the first token of the step.
    first: Option<usize>,
    /// [tokens, layers, k]
    routes: Vec<u16>,
    chain: blake3::Hash,
    steps: Vec<CertifiedStep>,
}

impl Witness {
    /// A witness of an answer to `prompt`.
    pub fn new(spec: &ModelSpec, prompt: &[u32]) -> Witness {
        let mut layers = 0;
        let mut places = Vec::with_capacity(spec.visits());
        for layer in spec.in_order() {
            let is_moe = layer.moe().is_some();
            places.push(is_moe.then_some(layers));
            layers += usize::from(is_moe);
        }
        let bytes: Vec<u8> = prompt.iter().copied().flat_map(u32::to_le_bytes).collect();
        let top_k = spec.max_top_k();
        Witness {
            places,
            top_k,
            row: layers * top_k,
            first: None,
            routes: Vec::new(),
            chain: blake3::hash(&bytes),
            steps: Vec::new(),
        }
    }
}

impl Witness {
    /// Records the experts that a layer chose for the rows of a sequence in a pass.
    pub fn note_routed(&mut self, span: &Span, layer: usize, routed: &Routed) {
        let first = span.first_position;
        let top_k = routed.top_k.max(1);
        let Some(Some(place)) = self.places.get(layer) else { return };
        let start = first - *self.first.get_or_insert(first);
        let rows = routed.choices.chunks(top_k).skip(span.first_row).take(span.tokens);
        for (token, choices) in rows.enumerate() {
            let row = (start + token) * self.row;
            if self.routes.len() < row + self.row {
                self.routes.resize(row + self.row, u16::MAX);
            }
            let to = &mut self.routes[row + place * self.top_k..][..choices.len()];
            for (to, &expert) in to.iter_mut().zip(choices) {
                *to = expert as u16;
            }
        }
    }
}

impl Observer for Witness {
    fn routed(&mut self, pass: &Pass, layer: usize, routed: &Routed) -> Result<(), SourceError> {
        if let Some(span) = pass.spans.first() {
            self.note_routed(span, layer, routed);
        }
        Ok(())
    }

    fn logits(&mut self, _: usize, logits: &[f32]) {
        let mut hasher = blake3::Hasher::new();
        hasher.update(self.chain.as_bytes());
        let mut routes = String::with_capacity(4 * self.routes.len());
        for route in self.routes.drain(..) {
            routes.push_str(&format!("{route:04x}"));
            hasher.update(&route.to_le_bytes());
        }
        for logit in logits {
            // All NaNs are equal.
            let bits = if logit.is_nan() { f32::NAN.to_bits() } else { logit.to_bits() };
            hasher.update(&bits.to_le_bytes());
        }
        self.chain = hasher.finalize();
        self.first = None;
        self.steps.push(CertifiedStep { routes, chain: self.chain.to_hex().to_string() });
    }
}

fn damaged(what: impl fmt::Display) -> CertificateError {
    CertificateError::Damaged(what.to_string())
}

/// A model in an error message.
fn name_of_model(model: &ModelIdentity) -> String {
    let short = model.fingerprint.get(..12).unwrap_or(&model.fingerprint);
    format!("{} {short}", model.model_type)
}

/// An encoding in an error message.
fn name_of_encoding(encoding: Option<&str>) -> String {
    encoding.unwrap_or("its checkpoint's numbers").to_owned()
}

/// The first characters of a name, for an error message.
fn render(name: &str) -> String {
    name.chars().take(40).collect()
}

fn first_sampler() -> String {
    FIRST_SAMPLER.to_owned()
}

fn first_arithmetic() -> u32 {
    FIRST_ARITHMETIC
}

fn is_first(arithmetic: &u32) -> bool {
    *arithmetic == FIRST_ARITHMETIC
}

fn as_they_are() -> String {
    Activations::F32.name().to_owned()
}

fn are_as_they_are(activations: &str) -> bool {
    activations == Activations::F32.name()
}

fn encoding(manifest: &Manifest) -> Option<String> {
    Some(manifest.encoding?.name().to_owned())
}
