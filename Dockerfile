# docker build -t windtunnel . && docker run --rm -v "$PWD:/job" windtunnel check train.sh --cluster h100-sxm:512
FROM python:3.12-slim AS build
WORKDIR /src
COPY pyproject.toml README.md LICENSE NOTICE ./
COPY src src
RUN pip wheel --no-cache-dir --wheel-dir /wheels ".[mcp]"

FROM python:3.12-slim
COPY --from=build /wheels /wheels
RUN pip install --no-cache-dir --no-index --find-links /wheels "windtunnel[mcp]" && rm -r /wheels \
    && useradd --create-home windtunnel && mkdir /job && chown windtunnel /job
USER windtunnel
WORKDIR /job
RUN windtunnel predict llama-3-8b --cluster h100-sxm:8 --global-batch 8 --seq-len 2048 --no-save > /dev/null
ENTRYPOINT ["windtunnel"]
CMD ["--help"]
