//! Models, their pieces, and the clients that read them.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;
use std::sync::Arc;

use sws_far::{Far, FarError, FarOptions, FarOrigin};
use sws_format::{Clock, Manifest, PieceId};
use sws_store::{Arena, FetchError, NVMeWeightStore, Read, ReaderKind, StoreOptions, Supply};
use sws_testing::bucket::{Bucket, Keys};
use sws_testing::tales;

pub(crate) const EXPERT: &str = "layer_0/expert_3.safetensors";
pub(crate) const SECRET: &str = "wJalrXUtnFEMI";

pub(crate) fn bucket() -> Bucket {
    Bucket::of_dir("/models/tales", &tales()).unwrap()
}

/// The variables of a client with the keys of `with_keys`, and others.
pub(crate) fn variables(bucket: &Bucket, more: &[(&str, &str)]) -> BTreeMap<String, OsString> {
    let endpoint = bucket.endpoint();
    let ours = [
        ("AWS_ENDPOINT_URL", endpoint.as_str()),
        ("AWS_ACCESS_KEY_ID", "AKID"),
        ("AWS_SECRET_ACCESS_KEY", SECRET),
    ];
    ours.iter().chain(more).map(|(name, value)| ((*name).to_owned(), value.into())).collect()
}

pub(crate) fn with_keys(bucket: &Bucket) {
    bucket.state().keys = Some(Keys {
        id: "AKID".to_owned(),
        secret: SECRET.to_owned(),
        token: None,
        region: "us-east-1".to_owned(),
    });
}

pub(crate) fn origin(
    address: &str,
    variables: &BTreeMap<String, OsString>,
    clock: Clock,
) -> Result<FarOrigin, FarError> {
    FarOrigin::with(address.parse()?, |name| variables.get(name).cloned(), clock)
}

pub(crate) fn options(cache: &Path, limit: Option<u64>) -> FarOptions {
    FarOptions { cache: Some(cache.to_owned()), limit, ..FarOptions::default() }
}

/// Opens the model of public files, with a clock on which pauses take no time.
pub(crate) fn public(
    bucket: &Bucket,
    cache: &Path,
    limit: Option<u64>,
) -> Result<Arc<Far>, FarError> {
    let address = format!("{}/models/tales", bucket.endpoint());
    let origin = origin(&address, &BTreeMap::new(), Clock::simulated())?;
    Far::open(origin, &options(cache, limit)).map(Arc::new)
}

pub(crate) fn store(far: &Arc<Far>) -> NVMeWeightStore {
    let manifest = far.manifest();
    let local = ReaderKind::Direct.open(manifest, far.dir(), 4).unwrap();
    let reader = Some(Arc::clone(far).reader(local).unwrap());
    let options = StoreOptions { reader, cache: None, ..StoreOptions::default() };
    NVMeWeightStore::open(Arc::clone(manifest), far.dir(), options).unwrap()
}

pub(crate) fn local() -> NVMeWeightStore {
    let dir = tales();
    let manifest = Arc::new(Manifest::load(&dir).unwrap());
    let options = StoreOptions { cache: None, ..StoreOptions::default() };
    NVMeWeightStore::open(manifest, &dir, options).unwrap()
}

/// The bytes of a piece's tensors.
pub(crate) fn bytes(store: &NVMeWeightStore, piece: PieceId) -> Result<Vec<u8>, FetchError> {
    let arena = Arena::new(8 << 20).unwrap();
    let read = store.read(Read::Piece(piece), &arena)?;
    let parts = read.layout.tensors().iter().flat_map(|tensor| tensor.parts(&read.slot).unwrap());
    Ok(parts.collect::<Vec<_>>().concat())
}

#[track_caller]
pub(crate) fn assert_same(store: &NVMeWeightStore, pieces: impl IntoIterator<Item = PieceId>) {
    let local = local();
    for piece in pieces {
        let found = bytes(store, piece).unwrap_or_else(|e| panic!("{piece}: {e}"));
        assert!(found == bytes(&local, piece).unwrap(), "{piece} has other bytes");
    }
}

pub(crate) fn all() -> Vec<PieceId> {
    Manifest::load(tales()).unwrap().pieces.iter().map(|piece| piece.id).collect()
}

pub(crate) fn expert() -> PieceId {
    PieceId::expert(0, 3)
}

/// Bytes that the files of a cache take on disk.
pub(crate) fn on_disk(dir: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let entries = dir.read_dir().into_iter().flatten().flatten();
    let sizes = entries.map(|entry| match entry.metadata().unwrap() {
        about if about.is_dir() => on_disk(&entry.path()),
        about => about.blocks() * 512,
    });
    sizes.sum()
}
