"""Applications on the public interface: Flower, pages, reproduction of papers, audits. Nobody else imports them."""
