# For CPUs: docker build -t rl-zoo . && docker run -v $PWD/runs:/work/runs rl-zoo run algo=iql env=hopper steps=10000
FROM python:3.12-slim
RUN apt-get update && apt-get install -y --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*
COPY . /src
RUN pip install --no-cache-dir --extra-index-url https://download.pytorch.org/whl/cpu '/src[envpool]'
WORKDIR /work
ENTRYPOINT ["zoo"]
CMD ["--help"]
