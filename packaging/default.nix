# `nix-build packaging`: the program as the other packages lay it out. Needs a nixpkgs with Rust 1.95.
{
  pkgs ? import <nixpkgs> { },
}:

let
  inherit (pkgs) lib rustPlatform;
  root = ../.;
  workspace = (lib.importTOML ../Cargo.toml).workspace.package;
in
rustPlatform.buildRustPackage {
  pname = "sws";
  inherit (workspace) version;

  src = lib.cleanSourceWith {
    src = root;
    filter = path: _: baseNameOf path != "target" && baseNameOf path != ".git";
  };
  cargoLock.lockFile = ../Cargo.lock;
  buildAndTestSubdir = "crates/cli";
  # Without `tale`: the files of the bundled model are beside the program.
  buildNoDefaultFeatures = true;
  buildFeatures = [ "candle" "forms" "gpu" "pull" "serve" "uring" ];
  # The tests take half an hour, and run where the project is developed.
  doCheck = false;

  postPatch = "patchShebangs packaging";
  postInstall = ''
    packaging/tree "$out/bin/sws" "$TMPDIR/tree"
    cp -r "$TMPDIR/tree/share" "$out/share"
  '';

  meta = {
    description = "Runs Mixture-of-Experts language models larger than memory";
    license = with lib.licenses; [
      mit
      asl20
    ];
    mainProgram = "sws";
    platforms = lib.platforms.linux;
  };
}
