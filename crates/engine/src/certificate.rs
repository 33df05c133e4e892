//! Certificates: what an answer was computed from, so that anybody can compute it again and compare
//! every bit.

use serde::{Deserialize, Serialize};
use sws_model::text::{SAMPLER, SampleError, Sampler, Sampling};
use sws_model::{CausalLm, ForwardError, KvPrecision, ModelSpec, Observer, Routed, SourceError};
use sws_store::{Manifest, ModelIdentity, Pass};

/// The version of the file. Another is refused.
const FORMAT: &str = "sws-certificate-1";
/// What computes may give other bits in another version.
const VERSION: &str = env!("CARGO_PKG_VERSION");
/// The sampler of certificates that name none.
const FIRST_SAMPLER: &str = "uniform-1";

/// What is needed to compute an answer again, and a chain of hashes over all that came of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Certificate {
    format: String,
    /// Of the program.
    version: String,
    model: ModelIdentity,
    /// How the shards are encoded; none for a checkpoint in place.
    encoding: Option<String>,
    /// How keys and values were kept.
    kv: String,
    /// How a seed becomes a text.
    #[serde(default = "first_sampler")]
    sampler: String,
    sampling: Sampling,
    prompt: Vec<u32>,
    /// The answer.
    tokens: Vec<u32>,
    /// What led to each token of the answer.
    steps: Vec<Step>,
    /// A hash over all of the above.
    seal: String,
}

/// A pass, at whose end logits were looked at.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Step {
    /// The experts of each token in each layer that has any, four hexadecimal digits each.
    routes: String,
    /// blake3 over the link before, the routes and the logits.
    chain: String,
}

/// Whether a replay computed the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Every bit.
    Agrees {
        /// Steps compared.
        steps: usize,
    },
    /// Up to a step, counted from 0, the prompt's.
    Differs {
        /// Which.
        step: usize,
        /// In what.
        what: Difference,
    },
    /// It was told to stop before it was done.
    Stopped,
}

/// What differs first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Difference {
    /// A router has chosen other experts.
    Routes,
    /// The same experts gave other logits.
    Logits,
    /// The same logits gave another token.
    Token,
}

/// Why there is nothing to compare.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CertificateError {
    /// The file is no certificate.
    #[error("this is no certificate ({0}); make one with `sws run --certify FILE`")]
    Damaged(String),
    /// It was changed.
    #[error("the certificate was changed after it was made; get it again from where it came")]
    Changed,
    /// It comes from another sampler.
    #[error(
        "the certificate is of the sampler {found} and this is {SAMPLER}, with which a seed gives another text; make it again with `sws run --certify FILE`, or check it with the program that made it"
    )]
    Sampler {
        /// Which.
        found: String,
    },
    /// It comes from another version.
    #[error(
        "the certificate was made by version {found} and this is {VERSION}, whose bits may be others; use that version"
    )]
    Version {
        /// Which.
        found: String,
    },
    /// It is about another model.
    #[error(
        "the certificate is about another model ({expected}) than this one ({found}); name that one"
    )]
    Foreign {
        /// Its fingerprint.
        expected: String,
        /// This one's.
        found: String,
    },
    /// It is about the same model in another encoding.
    #[error(
        "the certificate is about the model in {expected} and this one is in {found}; name that one"
    )]
    Encoding {
        /// Its encoding.
        expected: String,
        /// This one's.
        found: String,
    },
    /// The model could not be run.
    #[error(transparent)]
    Forward(#[from] ForwardError),
    /// No token could be chosen.
    #[error(transparent)]
    Sample(#[from] SampleError),
}

impl Certificate {
    /// Of the answer `tokens`, which `witness` has seen made.
    pub fn new(
        manifest: &Manifest,
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
            kv: kv_name(kv).to_owned(),
            sampler: SAMPLER.to_owned(),
            sampling,
            prompt: prompt.to_vec(),
            tokens: tokens.to_vec(),
            steps: witness.steps,
            seal: String::new(),
        };
        certificate.seal();
        certificate
    }

    /// Puts a seal on what it says now: it tells a slip from the original. Against a forger only a
    /// replay helps.
    pub fn seal(&mut self) {
        self.seal = self.hash();
    }

    /// Reads one.
    pub fn parse(json: &[u8]) -> Result<Certificate, CertificateError> {
        let certificate: Certificate =
            serde_json::from_slice(json).map_err(|e| CertificateError::Damaged(e.to_string()))?;
        let damaged = |what: &str| Err(CertificateError::Damaged(what.to_owned()));
        if certificate.format != FORMAT {
            return damaged("it is in another format");
        }
        // Before the seal, which is of what the file says, and one without a sampler says less.
        if certificate.sampler != SAMPLER {
            return Err(CertificateError::Sampler { found: shown(&certificate.sampler) });
        }
        if certificate.hash() != certificate.seal {
            return Err(CertificateError::Changed);
        }
        if certificate.version != VERSION {
            return Err(CertificateError::Version { found: shown(&certificate.version) });
        }
        if certificate.prompt.is_empty() || certificate.tokens.len() != certificate.steps.len() {
            return damaged("it does not say what led to every token");
        }
        if certificate.kv().is_none() {
            return damaged("it names a precision that there is not");
        }
        Ok(certificate)
    }

    /// As it is written to a file.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("plain data") + "\n"
    }

    /// Whether it is about this model.
    pub fn check(&self, manifest: &Manifest) -> Result<(), CertificateError> {
        let (found, expected) = (&manifest.model, &self.model);
        if found != expected {
            let name = |model: &ModelIdentity| {
                let short = model.fingerprint.get(..12).unwrap_or(&model.fingerprint);
                format!("{} {short}", model.model_type)
            };
            let (expected, found) = (name(expected), name(found));
            return Err(CertificateError::Foreign { expected, found });
        }
        let found = encoding(manifest);
        if found != self.encoding {
            let name = |encoding: &Option<String>| match encoding {
                Some(encoding) => encoding.clone(),
                None => "its checkpoint's numbers".to_owned(),
            };
            let (expected, found) = (name(&self.encoding), name(&found));
            return Err(CertificateError::Encoding { expected, found });
        }
        Ok(())
    }

    /// How keys and values have to be kept.
    pub fn kv(&self) -> Option<KvPrecision> {
        [KvPrecision::F32, KvPrecision::Bf16].into_iter().find(|kv| kv_name(*kv) == self.kv)
    }

    /// The prompt.
    pub fn prompt(&self) -> &[u32] {
        &self.prompt
    }

    /// The answer.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Computes the answer again and compares. `step` is told how many steps are done, and says
    /// whether to go on.
    pub fn replay(
        &self,
        spec: &ModelSpec,
        lm: &mut dyn CausalLm,
        step: &mut dyn FnMut(usize) -> bool,
    ) -> Result<Outcome, CertificateError> {
        let mut witness = Witness::new(spec, &self.prompt);
        let mut sampler = Sampler::new(self.sampling.clone(), spec.vocab);
        sampler.prompt(&self.prompt)?;
        let mut next = self.prompt.clone();
        for (number, (expected, &token)) in self.steps.iter().zip(&self.tokens).enumerate() {
            if !step(number) {
                return Ok(Outcome::Stopped);
            }
            let first = lm.len();
            let mut logits = lm.observed(&next, &mut witness)?.to_vec();
            witness.logits(first + next.len() - 1, &logits);
            let found = witness.steps.last().expect("logits end a step");
            let differs = |what| Ok(Outcome::Differs { step: number, what });
            if found.routes != expected.routes {
                return differs(Difference::Routes);
            }
            if found.chain != expected.chain {
                return differs(Difference::Logits);
            }
            if sampler.sample(&mut logits, lm.len())? != token {
                return differs(Difference::Token);
            }
            next = vec![token];
        }
        Ok(Outcome::Agrees { steps: self.steps.len() })
    }

    fn hash(&self) -> String {
        let unsealed = Certificate { seal: String::new(), ..self.clone() };
        blake3::hash(unsealed.to_json().as_bytes()).to_hex().to_string()
    }
}

/// Looks on while an answer is made: told of the logits of each step, it links them to the routes.
#[derive(Clone, Debug)]
pub struct Witness {
    /// The place of each layer among those with experts.
    places: Vec<Option<usize>>,
    top_k: usize,
    /// Experts of a token in all layers.
    row: usize,
    /// Position of the first token of the step.
    first: Option<usize>,
    /// [tokens, layers, k]
    routes: Vec<u16>,
    chain: blake3::Hash,
    steps: Vec<Step>,
}

impl Witness {
    /// Of an answer to `prompt`.
    pub fn new(spec: &ModelSpec, prompt: &[u32]) -> Witness {
        let mut layers = 0;
        let mut place = |moe: bool| {
            layers += usize::from(moe);
            moe.then(|| layers - 1)
        };
        let places = spec.layers.iter().map(|l| place(l.moe().is_some())).collect();
        let bytes: Vec<u8> = prompt.iter().flat_map(|token| token.to_le_bytes()).collect();
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

impl Observer for Witness {
    fn routed(&mut self, pass: &Pass, layer: usize, routed: &Routed) -> Result<(), SourceError> {
        let first = pass.first_position();
        let Some(Some(place)) = self.places.get(layer) else { return Ok(()) };
        let start = first - *self.first.get_or_insert(first);
        for (token, choices) in routed.choices.chunks(routed.top_k.max(1)).enumerate() {
            let row = (start + token) * self.row;
            if self.routes.len() < row + self.row {
                self.routes.resize(row + self.row, u16::MAX);
            }
            let to = &mut self.routes[row + place * self.top_k..][..choices.len()];
            to.iter_mut().zip(choices).for_each(|(to, &expert)| *to = expert as u16);
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
            // Any NaN equals any other.
            let bits = if logit.is_nan() { f32::NAN.to_bits() } else { logit.to_bits() };
            hasher.update(&bits.to_le_bytes());
        }
        self.chain = hasher.finalize();
        self.first = None;
        self.steps.push(Step { routes, chain: self.chain.to_hex().to_string() });
    }
}

/// As much of a name as a sentence has room for.
fn shown(name: &str) -> String {
    name.chars().take(40).collect()
}

fn first_sampler() -> String {
    FIRST_SAMPLER.to_owned()
}

fn encoding(manifest: &Manifest) -> Option<String> {
    manifest.encoding.map(|encoding| encoding.name().to_owned())
}

fn kv_name(kv: KvPrecision) -> &'static str {
    match kv {
        KvPrecision::F32 => "f32",
        KvPrecision::Bf16 => "bf16",
    }
}
