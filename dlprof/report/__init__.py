"""Renderers: a run or a recommendation in, text or a Rich renderable out. They judge nothing."""
