"""Why a traced job is slow."""
