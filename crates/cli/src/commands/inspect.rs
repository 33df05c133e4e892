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
                let contents = sws::contents(&sketch.path);
                let (manifest, spec) = contents.map_err(|e| sketch.explained(e.into()))?;
                // The fingerprint depends on samples of the weights.
                let report = InspectReport {
                    fingerprint: None,
                    ..InspectReport::of(&manifest, spec.as_ref())
                };
                print_report(args.json, &report, || report.text())
            }
        };
    }
    let path = path?;
    match sws::contents(&path) {
        Ok((manifest, spec)) => {
            let report = InspectReport::of(&manifest, spec.as_ref());
            print_report(args.json, &report, || report.text())
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
        let tensors = |stand_ins: bool| {
            manifest.pieces.iter().flat_map(move |piece| {
                let tensors = match &piece.stand_in {
                    _ if !stand_ins => piece.tensors.as_slice(),
                    Some(stand_in) => stand_in.tensors.as_slice(),
                    None => &[],
                };
                tensors.iter().map(move |tensor| (piece.id, tensor))
            })
        };
        let skipped = match spec {
            Some(spec) => spec.left_out(manifest),
            None => {
                let extra = manifest.piece(PieceId::EXTRA).into_iter().flat_map(|it| &it.tensors);
                LeftOut::of(extra.map(|tensor| Unused { tensor, part: UnusedPart::Images }))
            }
        };
        let layers: BTreeSet<u32> = manifest.pieces.iter().filter_map(|p| p.id.layer()).collect();
        let mut experts: BTreeMap<Option<u32>, usize> = BTreeMap::new();
        for piece in &manifest.pieces {
            if matches!(piece.id.kind(), PieceKind::Expert(_)) {
                *experts.entry(piece.id.layer()).or_default() += 1;
            }
        }
        let lossy = tensors(false).filter_map(|(piece, tensor)| {
            let error = tensor.error?;
            let relative = error.relative;
            let max = error.max;
            Some(Lossy {
                piece,
                tensor: tensor.name.clone(),
                encoding: stored_as(tensor),
                relative,
                max,
            })
        });
        InspectReport {
            model_type: manifest.model.model_type.clone(),
            fingerprint: Some(manifest.model.fingerprint.clone()),
            encoding: manifest.encoding.map(|e| e.name().to_owned()),
            layers: layers.len(),
            experts: experts.into_values().max().unwrap_or(0),
            pieces: manifest.pieces.len(),
            file_bytes: manifest.files.iter().map(|file| file.len).sum(),
            stored_bytes: tensors(false).map(|(_, tensor)| tensor.stored_bytes()).sum(),
            source_bytes: tensors(false).map(|(_, tensor)| tensor.source_bytes()).sum(),
            kinds: rows(tensors(false)),
            stand_ins: rows(tensors(true)),
            lossy_tensors: lossy.collect(),
            skipped: skipped.into_iter().map(Skipped::from).collect(),
        }
    }

    fn text(&self) -> String {
        let encoding = match &self.encoding {
            Some(encoding) => format!("shards in {encoding}"),
            None => "checkpoint".to_owned(),
        };
        let mut text = wrapped(&format!(
            "{}, {encoding}: {} layers, {} experts a layer, {} pieces, {}\n{}\n",
            self.model_type,
            self.layers,
            self.experts,
            self.pieces,
            size(self.file_bytes),
            self.fingerprint
                .as_ref()
                .map_or(String::new(), |print| format!("fingerprint {print}\n")),
        ));
        let heading =
            ["pieces", "count", "<encoding", "tensors", "bytes", "in checkpoint", "share"];
        let cells = |row: &InspectRow, kind: String| {
            vec![
                kind,
                row.pieces.to_string(),
                row.encoding.clone(),
                row.tensors.to_string(),
                size(row.stored_bytes),
                size(row.source_bytes),
                share(row.stored_bytes, row.source_bytes),
            ]
        };
        let mut rows: Vec<_> = self.kinds.iter().map(|r| cells(r, r.kind.to_owned())).collect();
        rows.push(vec![
            "all".to_owned(),
            self.pieces.to_string(),
            String::new(),
            self.kinds.iter().map(|row| row.tensors).sum::<usize>().to_string(),
            size(self.stored_bytes),
            size(self.source_bytes),
            share(self.stored_bytes, self.source_bytes),
        ]);
        rows.extend(self.stand_ins.iter().map(|r| cells(r, format!("stand-ins of {}", r.kind))));
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
            let row = |it: &Skipped| {
                vec![it.names.clone(), it.tensors.to_string(), size(it.stored_bytes)]
            };
            let rows: Vec<_> = self.skipped.iter().map(row).collect();
            text.push_str(&table(&["name", "tensors", "bytes"], &rows));
        }
        text
    }

    /// The largest errors by kind, if there are any.
    fn errors(&self) -> String {
        let number = |n: Option<f64>| n.map_or(String::new(), |n| format!("{n:.2e}"));
        let cells = |row: &InspectRow, kind: String| {
            let errors = [row.relative_error, row.max_error, row.spectral_error];
            vec![kind, row.encoding.clone()].into_iter().chain(errors.map(number)).collect()
        };
        let lossy = |row: &&InspectRow| row.relative_error.is_some();
        let kinds = self.kinds.iter().filter(lossy).map(|row| cells(row, row.kind.to_owned()));
        let stand_ins = self.stand_ins.iter().filter(lossy);
        let stand_ins = stand_ins.map(|row| cells(row, format!("stand-ins of {}", row.kind)));
        let rows: Vec<Vec<String>> = kinds.chain(stand_ins).collect();
        let heading = ["pieces", "<encoding", "rel. error", "max error", "spectral"];
        if rows.is_empty() { String::new() } else { format!("\n{}", table(&heading, &rows)) }
    }

    fn worst(&self) -> String {
        let mut worst: Vec<&Lossy> = self.lossy_tensors.iter().collect();
        worst.sort_by(|a, b| b.relative.total_cmp(&a.relative));
        let rows: Vec<Vec<String>> = worst
            .iter()
            .take(5)
            .map(|lossy| {
                vec![
                    lossy.tensor.clone(),
                    lossy.encoding.clone(),
                    format!("{:.3e}", lossy.relative),
                    format!("{:.3e}", lossy.max),
                ]
            })
            .collect();
        table(&["tensor", "<encoding", "rel. error", "max error"], &rows)
    }
}

fn rows<'a>(tensors: impl Iterator<Item = (PieceId, &'a Tensor)>) -> Vec<InspectRow> {
    let mut groups: BTreeMap<(usize, String), (BTreeSet<PieceId>, InspectRow)> = BTreeMap::new();
    for (piece, tensor) in tensors {
        let (order, kind) = kind_name(piece.kind());
        let encoding = stored_as(tensor);
        let (pieces, row) = groups.entry((order, encoding.clone())).or_insert_with(|| {
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
            let larger = |a: Option<f64>, b: f64| Some(a.unwrap_or(0.0).max(b));
            row.relative_error = larger(row.relative_error, error.relative);
            row.max_error = larger(row.max_error, error.max);
            if let (Some(spectral), Some(change)) = (error.spectral, error.spectral_error) {
                let share = if change > 0.0 { change / spectral } else { 0.0 };
                row.spectral_error = larger(row.spectral_error, share);
            }
        }
    }
    groups.into_values().map(|(_, row)| row).collect()
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
