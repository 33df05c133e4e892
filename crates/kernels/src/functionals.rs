//! The registry of functionals: which implementations there are of each kind, and which were chosen.

use std::fmt;
use std::str::FromStr;

use crate::isa::{Tier, UnknownTier};

/// What the layers of a model are made of. Each kind is computed by an implementation of its own choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Products with weights, the packing of what is multiplied, and biases.
    Linear,
    /// Attention over the cache of keys and values.
    Attention,
    /// Norms, and the sums of branches that they stand between.
    Norm,
    /// Rotary embeddings.
    Rope,
    /// Gates of MLPs, the choice of experts and the sum of what they give.
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

    /// The implementations that this CPU can run, fastest first: so far every kind has all tiers.
    pub fn implementations(self) -> Vec<Tier> {
        Tier::available()
    }
}

/// Which implementation computes each kind. Not a bit of any result depends on it.
///
/// As words: one implementation for all kinds, or others for some of them, `avx2` or
/// `attention=portable` or `avx512,norm=scalar,rope=scalar`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Functionals {
    /// Of [`Kind::Linear`].
    pub linear: Tier,
    /// Of [`Kind::Attention`].
    pub attention: Tier,
    /// Of [`Kind::Norm`].
    pub norm: Tier,
    /// Of [`Kind::Rope`].
    pub rope: Tier,
    /// Of [`Kind::Moe`].
    pub moe: Tier,
}

/// The variable that chooses implementations, in the words that [`Functionals`] explains.
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

    /// The fastest implementations, or those that `SWS_TIER` asks for, if it is neither unset nor empty.
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

    /// The same with another implementation of one kind.
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

/// The tier of products, then each kind that has another.
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

/// Words that name no implementation, or none of a kind.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnknownFunctional {
    /// There is no such kind.
    #[error("`{word}` is no kind of functional; choose one of {}", Kind::ALL.map(Kind::name).join(", "))]
    Kind {
        /// What was asked for.
        word: String,
    },
    /// There is no such implementation.
    #[error(transparent)]
    Tier(#[from] UnknownTier),
}

impl FromStr for Functionals {
    type Err = UnknownFunctional;

    /// What stands later has the last word.
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
