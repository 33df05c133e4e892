//! `sws inspect`.

use std::collections::{BTreeMap, BTreeSet};
use std::process::ExitCode;

use serde::Serialize;
use sws::Outline;
use sws_engine::PlanOptions;
use sws_format::{Manifest, PieceId, PieceKind, Tensor};
use sws_model::{LeftOut, ModelSpec, Unused, UnusedPart};

use super::remote::RemoteModel;
use super::{outline, print_report, remote, size};
use crate::table::{table, wrapped};
use crate::{args, far};

pub(crate) fn run(args: &args::Inspect) -> anyhow::Result<ExitCode> {
    far::refuse(&args.model)?;
    let path = sws::locate(&args.model);
    if let Err(missing) = &path
        && let Some((found, _)) = remote::found(missing)?
    {
        return match found {
            RemoteModel::Outline(outline, named) => {
                outline::print(&outline, named, PlanOptions::default(), None, args.json)
            }
            RemoteModel::Sketch(sketch) => {
                let (manifest, spec) = match sws::contents(&sketch.path) {
                    Ok(contents) => contents,
                    Err(e) => return Err(sketch.explained(e.into())),
                };
                // The fingerprint depends on samples of the weights.
                let report = InspectReport {
                    fingerprint: None,
                    ..InspectReport::of(&manifest, spec.as_ref())
                };
                print_report(args.json, &report, InspectReport::text)
            }
        };
    }
    let path = path?;
    match sws::contents(&path) {
        Ok((manifest, spec)) => {
            let report = InspectReport::of(&manifest, spec.as_ref());
            print_report(args.json, &report, InspectReport::text)
        }
        Err(error) => {
            let outline = Outline::instead(error, &path)?;
            outline::print(&outline, None, PlanOptions::default(), None, args.json)
        }
    }
}

/// The fields of the JSON.
#[derive(Debug, Serialize)]
struct InspectReport {
    model_type: String,
    /// None for a model on the hub.
    fingerprint: Option<String>,
    /// None for a checkpoint.
    encoding: Option<String>,
    layers: usize,
    /// Largest number of experts in a layer.
    experts: usize,
    pieces: usize,
    /// Total size of the files.
    file_bytes: u64,
    /// Bytes of the tensors as stored. `source_bytes` is their size in the checkpoint.
    stored_bytes: u64,
    source_bytes: u64,
    kinds: Vec<InspectRow>,
    stand_ins: Vec<InspectRow>,
    lossy_tensors: Vec<Lossy>,
    skipped: Vec<Skipped>,
}

/// Tensors that the language model does not use, by their names.
#[derive(Debug, Serialize)]
struct Skipped {
    names: String,
    tensors: usize,
    stored_bytes: u64,
}

impl From<LeftOut> for Skipped {
    fn from(LeftOut { names, tensors, bytes, .. }: LeftOut) -> Skipped {
        Skipped { names, tensors, stored_bytes: bytes }
    }
}

/// All tensors of one kind of piece in one encoding.
#[derive(Debug, Serialize)]
struct InspectRow {
    kind: &'static str,
    /// Name of the encoding, or of the type of raw numbers that no kernel computes with.
    encoding: String,
    pieces: usize,
    tensors: usize,
    stored_bytes: u64,
    source_bytes: u64,
    /// Largest relative error. `max_error` is the largest absolute one.
    relative_error: Option<f64>,
    max_error: Option<f64>,
    /// Largest bound of the error's spectral norm, as a share of that of the matrix.
    spectral_error: Option<f64>,
}

#[derive(Debug, Serialize)]
struct Lossy {
    piece: PieceId,
    tensor: String,
    encoding: String,
    relative: f64,
    max: f64,
}

impl InspectReport {
    fn of(manifest: &Manifest, spec: Option<&ModelSpec>) -> InspectReport {
        let mut kinds = InspectRows::default();
        let mut stand_ins = InspectRows::default();
        let mut lossy_tensors = Vec::new();
        let mut stored_bytes = 0;
        let mut source_bytes = 0;
        let mut layers = BTreeSet::new();
        for piece in &manifest.pieces {
            layers.extend(piece.id.layer());
            for tensor in &piece.tensors {
                kinds.add(piece.id, tensor);
                lossy_tensors.extend(Lossy::of(piece.id, tensor));
                stored_bytes += tensor.stored_bytes();
                source_bytes += tensor.source_bytes();
            }
            if let Some(stand_in) = &piece.stand_in {
                for tensor in &stand_in.tensors {
                    stand_ins.add(piece.id, tensor);
                }
            }
        }
        let skipped = match spec {
            Some(spec) => spec.left_out(manifest),
            None => {
                let mut unused = Vec::new();
                if let Some(extra) = manifest.piece(PieceId::EXTRA) {
                    for tensor in &extra.tensors {
                        unused.push(Unused { tensor, part: UnusedPart::Images });
                    }
                }
                LeftOut::of(unused)
            }
        };
        let mut experts: BTreeMap<Option<u32>, usize> = BTreeMap::new();
        for piece in &manifest.pieces {
            if matches!(piece.id.kind(), PieceKind::Expert(_)) {
                *experts.entry(piece.id.layer()).or_default() += 1;
            }
        }
        InspectReport {
            model_type: manifest.model.model_type.clone(),
            fingerprint: Some(manifest.model.fingerprint.clone()),
            encoding: manifest.encoding.map(|e| e.name().to_owned()),
            layers: layers.len(),
            experts: experts.into_values().max().unwrap_or(0),
            pieces: manifest.pieces.len(),
            file_bytes: manifest.files.iter().map(|file| file.len).sum(),
            stored_bytes,
            source_bytes,
            kinds: kinds.finish(),
            stand_ins: stand_ins.finish(),
            lossy_tensors,
            skipped: skipped.into_iter().map(Skipped::from).collect(),
        }
    }

    fn text(&self) -> String {
        let encoding = match &self.encoding {
            Some(encoding) => format!("shards in {encoding}"),
            None => "checkpoint".to_owned(),
        };
        let fingerprint = match &self.fingerprint {
            Some(print) => format!("fingerprint {print}\n"),
            None => String::new(),
        };
        let mut text = wrapped(&format!(
            "{}, {encoding}: {} layers, {} experts a layer, {} pieces, {}\n{fingerprint}\n",
            self.model_type,
            self.layers,
            self.experts,
            self.pieces,
            size(self.file_bytes),
        ));
        let heading =
            ["pieces", "count", "<encoding", "tensors", "bytes", "in checkpoint", "share"];
        let mut rows = Vec::new();
        for row in &self.kinds {
            rows.push(row.sizes(row.kind.to_owned()));
        }
        rows.push(vec![
            "all".to_owned(),
            self.pieces.to_string(),
            String::new(),
            self.kinds.iter().map(|row| row.tensors).sum::<usize>().to_string(),
            size(self.stored_bytes),
            size(self.source_bytes),
            share(self.stored_bytes, self.source_bytes),
        ]);
        for row in &self.stand_ins {
            rows.push(row.sizes(format!("stand-ins of {}", row.kind)));
        }
        text.push_str(&table(&heading, &rows));
        text.push_str(&self.errors());
        if !self.lossy_tensors.is_empty() {
            text.push_str(&format!(
                "\n{} tensors are not exactly what the checkpoint had; the worst:\n",
                self.lossy_tensors.len()
            ));
            text.push_str(&self.worst());
        }
        if !self.skipped.is_empty() {
            text.push_str(
                "\nThe language model does not use these tensors, and they are never read:\n",
            );
            let mut rows = Vec::new();
            for skipped in &self.skipped {
                let tensors = skipped.tensors.to_string();
                rows.push(vec![skipped.names.clone(), tensors, size(skipped.stored_bytes)]);
            }
            text.push_str(&table(&["name", "tensors", "bytes"], &rows));
        }
        text
    }

    /// The largest errors by kind, if there are any.
    fn errors(&self) -> String {
        let mut rows = Vec::new();
        for row in &self.kinds {
            rows.extend(row.errors(row.kind.to_owned()));
        }
        for row in &self.stand_ins {
            rows.extend(row.errors(format!("stand-ins of {}", row.kind)));
        }
        let heading = ["pieces", "<encoding", "rel. error", "max error", "spectral"];
        if rows.is_empty() { String::new() } else { format!("\n{}", table(&heading, &rows)) }
    }

    fn worst(&self) -> String {
        let mut worst: Vec<&Lossy> = self.lossy_tensors.iter().collect();
        worst.sort_by(|a, b| b.relative.total_cmp(&a.relative));
        let mut rows = Vec::new();
        for lossy in worst.into_iter().take(5) {
            rows.push(vec![
                lossy.tensor.clone(),
                lossy.encoding.clone(),
                format!("{:.3e}", lossy.relative),
                format!("{:.3e}", lossy.max),
            ]);
        }
        table(&["tensor", "<encoding", "rel. error", "max error"], &rows)
    }
}

impl Lossy {
    fn of(piece: PieceId, tensor: &Tensor) -> Option<Lossy> {
        let error = tensor.error?;
        Some(Lossy {
            piece,
            tensor: tensor.name.clone(),
            encoding: stored_as(tensor),
            relative: error.relative,
            max: error.max,
        })
    }
}

impl InspectRow {
    /// Cells of the table of sizes.
    fn sizes(&self, kind: String) -> Vec<String> {
        vec![
            kind,
            self.pieces.to_string(),
            self.encoding.clone(),
            self.tensors.to_string(),
            size(self.stored_bytes),
            size(self.source_bytes),
            share(self.stored_bytes, self.source_bytes),
        ]
    }

    /// Cells of the table of errors; `None` for an exact encoding.
    fn errors(&self, kind: String) -> Option<Vec<String>> {
        self.relative_error?;
        let mut cells = vec![kind, self.encoding.clone()];
        for error in [self.relative_error, self.max_error, self.spectral_error] {
            cells.push(error.map_or(String::new(), |error| format!("{error:.2e}")));
        }
        Some(cells)
    }
}

/// Rows by kind of piece and encoding, each with its pieces.
#[derive(Default)]
struct InspectRows(BTreeMap<(usize, String), (BTreeSet<PieceId>, InspectRow)>);

impl InspectRows {
    fn add(&mut self, piece: PieceId, tensor: &Tensor) {
        let (order, kind) = kind_name(piece.kind());
        let encoding = stored_as(tensor);
        let (pieces, row) = self.0.entry((order, encoding.clone())).or_insert_with(|| {
            let row = InspectRow {
                kind,
                encoding,
                pieces: 0,
                tensors: 0,
                stored_bytes: 0,
                source_bytes: 0,
                relative_error: None,
                max_error: None,
                spectral_error: None,
            };
            (BTreeSet::new(), row)
        });
        pieces.insert(piece);
        row.pieces = pieces.len();
        row.tensors += 1;
        row.stored_bytes += tensor.stored_bytes();
        row.source_bytes += tensor.source_bytes();
        if let Some(error) = tensor.error {
            row.relative_error = larger(row.relative_error, error.relative);
            row.max_error = larger(row.max_error, error.max);
            if let Some(spectral) = error.spectral
                && let Some(change) = error.spectral_error
            {
                let share = if change > 0.0 { change / spectral } else { 0.0 };
                row.spectral_error = larger(row.spectral_error, share);
            }
        }
    }

    fn finish(self) -> Vec<InspectRow> {
        self.0.into_values().map(|(_, row)| row).collect()
    }
}

fn larger(known: Option<f64>, found: f64) -> Option<f64> {
    Some(known.unwrap_or(0.0).max(found))
}

fn stored_as(tensor: &Tensor) -> String {
    match tensor.encoding {
        Some(encoding) => encoding.name().to_owned(),
        None => tensor.dtype.to_string().to_lowercase(),
    }
}

fn share(part: u64, whole: u64) -> String {
    format!("{:.1} %", 100.0 * part as f64 / whole.max(1) as f64)
}

/// Name of a kind of piece, and its position in the order of a pass.
fn kind_name(kind: PieceKind) -> (usize, &'static str) {
    match kind {
        PieceKind::Embed => (0, "embedding"),
        PieceKind::Table(_) => (1, "tables of rows"),
        PieceKind::Norms => (2, "norms"),
        PieceKind::Attention => (3, "attention"),
        PieceKind::Router => (4, "routers"),
        PieceKind::SharedExpert => (5, "shared experts"),
        PieceKind::Mlp => (6, "dense layers"),
        PieceKind::Expert(_) => (7, "experts"),
        PieceKind::LayerInput => (8, "layer inputs"),
        PieceKind::FinalNorm => (9, "final norm"),
        PieceKind::LmHead => (10, "head"),
        PieceKind::Extra => (11, "extra"),
    }
}
