//! CPU features, as values that prove their presence.
//!
//! A token such as [`Avx512`] can only be made by a successful run-time check. A function that
//! takes one may use those instructions, and its callers need no `unsafe`.

use std::fmt;
use std::str::FromStr;

/// Proof that this CPU has AVX2, FMA and F16C, BMI1, BMI2 and POPCNT, as all with AVX2 do.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Avx2(());

#[cfg(target_arch = "x86_64")]
impl Avx2 {
    /// Returns the token if this CPU has the features.
    pub fn detect() -> Option<Self> {
        (is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c")
            && is_x86_feature_detected!("bmi1")
            && is_x86_feature_detected!("bmi2")
            && is_x86_feature_detected!("popcnt"))
        .then_some(Avx2(()))
    }
}

/// Proof that this CPU has AVX-512 F, BW, DQ and VL, and everything that [`Avx2`] proves.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Avx512(());

#[cfg(target_arch = "x86_64")]
impl Avx512 {
    /// Returns the token if this CPU has the features.
    pub fn detect() -> Option<Self> {
        (Avx2::detect().is_some()
            && is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl"))
        .then_some(Avx512(()))
    }

    /// What it proves, too.
    pub(crate) fn avx2(self) -> Avx2 {
        Avx2(())
    }
}

/// Proof that this CPU has NEON, and lanes of bytes in ascending order. All with 64 bits have the
/// instructions.
#[cfg(target_arch = "aarch64")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Neon(());

#[cfg(target_arch = "aarch64")]
impl Neon {
    /// Returns the token if this CPU has the features.
    pub fn detect() -> Option<Self> {
        (cfg!(target_endian = "little") && std::arch::is_aarch64_feature_detected!("neon"))
            .then_some(Neon(()))
    }
}

/// Environment variable that names a tier.
pub const TIER_VARIABLE: &str = "SWS_TIER";

/// An implementation of the kernels, with the proof that this CPU can run it, and how it takes
/// activations.
///
/// All tiers give the same bits for the same kind of [`Activations`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tier {
    isa: Isa,
    activations: Activations,
}

/// The instructions of a tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Isa {
    /// The short, slow reference that the others are tested against.
    Scalar,
    /// Plain Rust on arrays of 32 lanes, for CPUs without a tier of their own.
    Portable,
    /// AVX2 with FMA.
    #[cfg(target_arch = "x86_64")]
    Avx2(Avx2),
    /// AVX-512.
    #[cfg(target_arch = "x86_64")]
    Avx512(Avx512),
    /// NEON of 64-bit Arm.
    #[cfg(target_arch = "aarch64")]
    Neon(Neon),
}

/// Kinds of activations of products.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Activations {
    /// As they are.
    #[default]
    F32,
    /// Rounded to eight bits in blocks of 32 columns, where weights are small whole numbers: faster, and
    /// inexact. `docs/design/sums.md` has the definition.
    Int8,
}

impl Activations {
    /// Every kind.
    pub const ALL: [Activations; 2] = [Activations::F32, Activations::Int8];

    /// The name used on the command line and in files.
    pub const fn name(self) -> &'static str {
        match self {
            Activations::F32 => "f32",
            Activations::Int8 => "int8",
        }
    }
}

impl fmt::Display for Activations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A word that names no kind of activations.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a kind of activations; choose f32, or int8, which is faster and inexact")]
pub struct UnknownActivations(pub String);

impl FromStr for Activations {
    type Err = UnknownActivations;

    fn from_str(word: &str) -> Result<Self, Self::Err> {
        let named = |kind: &Activations| kind.name() == word;
        Activations::ALL.into_iter().find(named).ok_or_else(|| UnknownActivations(word.to_owned()))
    }
}

impl Tier {
    /// The short, slow reference that the others are tested against.
    pub const SCALAR: Tier = Tier::of(Isa::Scalar);

    /// Plain Rust, for CPUs without a tier of their own.
    pub const PORTABLE: Tier = Tier::of(Isa::Portable);

    const fn of(isa: Isa) -> Tier {
        Tier { isa, activations: Activations::F32 }
    }

    /// Every tier that this CPU can run, fastest first.
    pub fn available() -> Vec<Tier> {
        let mut tiers = Vec::new();
        #[cfg(target_arch = "x86_64")]
        {
            tiers.extend(Avx512::detect().map(Isa::Avx512));
            tiers.extend(Avx2::detect().map(Isa::Avx2));
        }
        #[cfg(target_arch = "aarch64")]
        tiers.extend(Neon::detect().map(Isa::Neon));
        tiers.extend([Isa::Portable, Isa::Scalar]);
        tiers.into_iter().map(Tier::of).collect()
    }

    /// The fastest tier of this CPU.
    pub fn best() -> Tier {
        Tier::available()[0]
    }

    /// The tier that `SWS_TIER` names, or the fastest one if it is unset or empty.
    pub fn from_env() -> Result<Tier, UnknownTier> {
        match std::env::var_os(TIER_VARIABLE).filter(|word| !word.is_empty()) {
            Some(word) => word.to_string_lossy().parse(),
            None => Ok(Tier::best()),
        }
    }

    /// The same instructions, with such activations.
    pub const fn with_activations(self, activations: Activations) -> Tier {
        Tier { isa: self.isa, activations }
    }

    /// The kind of activations.
    pub const fn activations(self) -> Activations {
        self.activations
    }

    pub(crate) const fn isa(self) -> Isa {
        self.isa
    }

    /// The name used on the command line and in tables.
    pub fn name(self) -> &'static str {
        match self.isa {
            Isa::Scalar => "scalar",
            Isa::Portable => "portable",
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2(_) => "avx2",
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512(_) => "avx512",
            #[cfg(target_arch = "aarch64")]
            Isa::Neon(_) => "neon",
        }
    }
}

impl fmt::Display for Tier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A word that names no tier this CPU can run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{word}` is not a kernel tier of this CPU; choose one of {available}")]
pub struct UnknownTier {
    word: String,
    available: String,
}

impl FromStr for Tier {
    type Err = UnknownTier;

    fn from_str(word: &str) -> Result<Self, Self::Err> {
        let tiers = Tier::available();
        tiers.iter().copied().find(|tier| tier.name() == word).ok_or_else(|| UnknownTier {
            word: word.to_owned(),
            available: tiers.iter().map(|tier| tier.name()).collect::<Vec<_>>().join(", "),
        })
    }
}
