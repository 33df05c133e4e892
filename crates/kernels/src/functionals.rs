//! Registry of functionals: the available implementations of each kind, and the chosen ones.

use std::fmt;
use std::str::FromStr;

use crate::isa::{Tier, UnknownTier};

/// A kind of operation in the layers of a model. The implementation is chosen per kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Products with weights, packing of activations, and biases.
    Linear,
    /// Attention over the cache of keys and values.
    Attention,
    /// Norms, and the residual sums between them.
    Norm,
    /// Rotary embeddings.
    Rope,
    /// Gates of MLPs, selection of experts, and the sum of their outputs.
    Moe,
}

impl Kind {
    /// Every kind.
    pub const ALL: [Kind; 5] = [Kind::Linear, Kind::Attention, Kind::Norm, Kind::Rope, Kind::Moe];

    /// The name used on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Linear => "linear",
            Kind::Attention => "attention",
            Kind::Norm => "norm",
            Kind::Rope => "rope",
            Kind::Moe => "moe",
        }
    }

    /// The implementations that this CPU can run, fastest first. So far every kind has all tiers.
    pub fn implementations(self) -> Vec<Tier> {
        Tier::available()
    }
}

/// The implementation chosen for each kind. No bit of any result depends on the choice.
///
/// Written as a comma-separated list of one implementation for all kinds, others for single kinds,
/// or both: `avx2`, `attention=portable` or `avx512,norm=scalar,rope=scalar`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Functionals {
    /// Implementation of [`Kind::Linear`].
    pub linear: Tier,
    /// Implementation of [`Kind::Attention`].
    pub attention: Tier,
    /// Implementation of [`Kind::Norm`].
    pub norm: Tier,
    /// Implementation of [`Kind::Rope`].
    pub rope: Tier,
    /// Implementation of [`Kind::Moe`].
    pub moe: Tier,
}

/// Environment variable that chooses implementations, in the syntax of [`Functionals`].
pub const TIER_VARIABLE: &str = "SWS_TIER";

impl Functionals {
    /// The fastest implementation of each kind.
    pub fn best() -> Functionals {
        let mut best = Functionals::from(Tier::Portable);
        for kind in Kind::ALL {
            *best.of_mut(kind) = kind.implementations()[0];
        }
        best
    }

    /// The implementations that `SWS_TIER` asks for, or the fastest ones if it is unset or empty.
    pub fn from_env() -> Result<Functionals, UnknownFunctional> {
        match std::env::var_os(TIER_VARIABLE).filter(|words| !words.is_empty()) {
            Some(words) => words.to_string_lossy().parse(),
            None => Ok(Functionals::best()),
        }
    }

    /// The implementation of one kind.
    pub fn of(mut self, kind: Kind) -> Tier {
        *self.of_mut(kind)
    }

    /// Replaces the implementation of one kind.
    pub fn with(mut self, kind: Kind, tier: Tier) -> Functionals {
        *self.of_mut(kind) = tier;
        self
    }

    fn of_mut(&mut self, kind: Kind) -> &mut Tier {
        match kind {
            Kind::Linear => &mut self.linear,
            Kind::Attention => &mut self.attention,
            Kind::Norm => &mut self.norm,
            Kind::Rope => &mut self.rope,
            Kind::Moe => &mut self.moe,
        }
    }
}

impl From<Tier> for Functionals {
    /// One tier for all kinds.
    fn from(tier: Tier) -> Functionals {
        Functionals { linear: tier, attention: tier, norm: tier, rope: tier, moe: tier }
    }
}

/// The tier of [`Kind::Linear`], then each kind that has another.
impl fmt::Display for Functionals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.linear)?;
        for kind in Kind::ALL {
            let tier = self.of(kind);
            if tier != self.linear {
                write!(f, ",{}={tier}", kind.name())?;
            }
        }
        Ok(())
    }
}

/// Text that names no kind or no implementation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnknownFunctional {
    /// The kind is unknown.
    #[error("`{word}` is no kind of functional; choose one of {}", Kind::ALL.map(Kind::name).join(", "))]
    Kind {
        /// The requested name.
        word: String,
    },
    /// The implementation is unknown or not available.
    #[error(transparent)]
    Tier(#[from] UnknownTier),
}

impl FromStr for Functionals {
    type Err = UnknownFunctional;

    /// Later words override earlier ones.
    fn from_str(words: &str) -> Result<Self, Self::Err> {
        let mut chosen = Functionals::best();
        for word in words.split(',') {
            let (kinds, tier) = match word.split_once('=') {
                None => (&Kind::ALL[..], word),
                Some((name, tier)) => {
                    let kind = Kind::ALL.iter().find(|kind| kind.name() == name);
                    let kind = kind.ok_or_else(|| UnknownFunctional::Kind { word: name.into() })?;
                    (std::slice::from_ref(kind), tier)
                }
            };
            for &kind in kinds {
                *chosen.of_mut(kind) = Tier::among(&kind.implementations(), tier)?;
            }
        }
        Ok(chosen)
    }
}
