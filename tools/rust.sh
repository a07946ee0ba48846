# Sourced by ./run and ./test: finds cargo, or installs it (rust-toolchain.toml names the version).
need_cargo() {
    command -v cargo >/dev/null 2>&1 && return 0
    [ -x "$HOME/.cargo/bin/cargo" ] && PATH="$HOME/.cargo/bin:$PATH" && export PATH && return 0
    echo "Rust is missing; installing it." >&2
    sudo=""
    [ "$(id -u)" = 0 ] || sudo="sudo"
    if command -v apt-get >/dev/null 2>&1; then
        $sudo apt-get update -q >&2 || true
        # A linker and curl for rustup; Debian 13 and Ubuntu 24.04 package rustup itself.
        $sudo apt-get install -qy --no-install-recommends gcc libc6-dev curl ca-certificates >&2
        $sudo apt-get install -qy --no-install-recommends rustup >&2 2>/dev/null || true
    fi
    if command -v rustup >/dev/null 2>&1; then
        rustup toolchain install >&2 # the version in rust-toolchain.toml
    else
        curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh -s -- -y --profile minimal >&2
    fi
    PATH="$HOME/.cargo/bin:$PATH"
    export PATH
    command -v cargo >/dev/null 2>&1 || {
        echo "Could not install Rust. See https://rustup.rs, then run this again." >&2
        exit 2
    }
}
